"""fleet.yaml: read, checked, explained and resolved.

`load` reads and checks the file, `explain` lists every setting with its origin, `resolve` turns it into a `FleetSpec`
once the sources have been fetched.
"""

from __future__ import annotations

from tuneplex.fleetfile.explain import Setting, explain
from tuneplex.fleetfile.load import load
from tuneplex.fleetfile.resolve import API_KEY_VARIABLE, resolve
from tuneplex.fleetfile.schema import FleetFile
from tuneplex.fleetfile.sources import Source, parse_source

__all__ = ["API_KEY_VARIABLE", "FleetFile", "Setting", "Source", "explain", "load", "parse_source", "resolve"]
