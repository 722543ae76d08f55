"""Composition: the processes of a fleet, their sockets, and the directory that holds a fleet's state.

The supervisor is part of this package and is kept small: import what you need from the modules.
"""
