"""How engines come to run: as processes of this machine, or as servers that already run somewhere.

The keeper and the supervisor load modules of this package, and are kept small: import what you need from the modules.
"""
