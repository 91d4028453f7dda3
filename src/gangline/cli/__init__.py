"""The command line. Nothing imports this room, and no other room reads the environment."""

from gangline.cli.root import main

__all__ = ["main"]
