"""``python -m gangline.cli`` is ``gangline``."""

from gangline.cli import main

main()
