"""The control loop: observe the replicas, decide what should change, act, and tell the gateways."""

from tuneplex.control.admin import admin_app
from tuneplex.control.controller import Controller

__all__ = ["Controller", "admin_app"]
