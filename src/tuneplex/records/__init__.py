"""What must outlive every process: tenants and keys, in SQLite or PostgreSQL."""

from tuneplex.records.database import sqlite_url
from tuneplex.records.failures import StoreRefused
from tuneplex.records.minting import digest, mint
from tuneplex.records.spending import Counted, Spending
from tuneplex.records.store import Store
from tuneplex.records.upkeep import StoreFacts, Upgraded

__all__ = [
    "Counted",
    "Spending",
    "Store",
    "StoreFacts",
    "StoreRefused",
    "Upgraded",
    "digest",
    "mint",
    "sqlite_url",
]
