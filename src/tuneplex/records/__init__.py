"""What must outlive every process: tenants, keys and usage, in SQLite or PostgreSQL."""

from tuneplex.records.counters import EngineCounters
from tuneplex.records.database import sqlite_url
from tuneplex.records.failures import StoreRefused
from tuneplex.records.minting import digest, mint
from tuneplex.records.requests import MOST_FOUND
from tuneplex.records.service import BAD, GOOD, SERVED_BY, FirstTokens, Served
from tuneplex.records.spending import Counted, Spending
from tuneplex.records.store import Store
from tuneplex.records.upkeep import StoreFacts, Upgraded
from tuneplex.records.usage import GROUPS, Usage

__all__ = [
    "BAD",
    "GOOD",
    "GROUPS",
    "MOST_FOUND",
    "SERVED_BY",
    "Counted",
    "EngineCounters",
    "FirstTokens",
    "Served",
    "Spending",
    "Store",
    "StoreFacts",
    "StoreRefused",
    "Upgraded",
    "Usage",
    "digest",
    "mint",
    "sqlite_url",
]
