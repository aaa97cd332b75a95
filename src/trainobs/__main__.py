"""`python -m trainobs`."""

from trainobs.cli import main

raise SystemExit(main())
