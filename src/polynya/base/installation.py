"""Installation of missing packages. Polynya itself is installed from a checkout: no
package is published."""

from __future__ import annotations


def install_command(extra: str) -> str:
    """Return how to install the packages of an extra."""
    return f"pip install '.[{extra}]' in Polynya's checkout"
