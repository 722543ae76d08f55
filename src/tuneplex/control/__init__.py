"""The control loop: observe the replicas, decide what should change, act, and tell the gateways."""

from tuneplex.control.admin import admin_app
from tuneplex.control.controller import Controller
from tuneplex.control.registry import Registry

__all__ = ["Controller", "Registry", "admin_app"]
