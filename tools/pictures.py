"""What all drawn pictures of the docs share."""

from __future__ import annotations

from typing import Final

# Where the page is dark, white is nearly black, and each colour is as light as it was dark. The
# site tells its pictures which theme is chosen (`site.css`); elsewhere it is the system's.
DARK: Final = (
    " @media (prefers-color-scheme: dark) { svg { filter: invert(0.92) hue-rotate(180deg); } }"
)
