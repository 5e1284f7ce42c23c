"""The fault of a transform."""

from polynya.base.errors import PolynyaError


class TransformFailed(PolynyaError):
    """The user's transform failed, or its rows cannot be stored; no other table is concerned."""
