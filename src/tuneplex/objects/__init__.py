"""Object stores that speak S3: where something lies in one, and what is asked of them.

Importing `tuneplex.objects.client` takes a third of a second, so whoever needs it does that at the last moment.
"""

from __future__ import annotations

from tuneplex.objects.place import Place

__all__ = ["Place"]
