"""What the metadata of a distribution takes from where it is built: addresses of the repository.

A workflow knows the repository that it runs in (`GITHUB_SERVER_URL`, `GITHUB_REPOSITORY`). There
the project gets its addresses, and the pictures of the README, which the package index shows, get
theirs. Elsewhere there are none, and the README stands as it is.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class RepositoryHook(MetadataHookInterface):
    """Sets ``urls`` and ``readme``."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set them in ``metadata``."""
        readme = Path(self.root, "README.md").read_text("utf-8")
        metadata["urls"] = {}
        name = os.environ.get("GITHUB_REPOSITORY")
        if name:
            page = f"{os.environ['GITHUB_SERVER_URL']}/{name}"
            at = f"v{metadata['version']}"
            metadata["urls"] = {
                "Source": page,
                "Issues": f"{page}/issues",
                "Changelog": f"{page}/blob/{at}/CHANGELOG.md",
            }
            readme = re.sub(r"(!\[[^\]]*\]\()(?!http)", rf"\1{page}/raw/{at}/", readme)
        metadata["readme"] = {"content-type": "text/markdown", "text": readme}
