"""Replace attributes of other people's modules and classes, and put every one back."""

from __future__ import annotations

from typing import Any

_ABSENT = object()


class Patches:
    """Attributes replaced so far, in order."""

    def __init__(self) -> None:
        self._originals: list[tuple[Any, str, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Replace one attribute; an attribute that `owner` only inherits is put back by deleting it."""
        self._originals.append((owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, value)

    def undo(self) -> None:
        """Put everything back, last first."""
        while self._originals:
            owner, name, original = self._originals.pop()
            if original is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, original)
