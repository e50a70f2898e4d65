"""Where the programs under test are."""
import os
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("CLOCHE_BUILD", ROOT / "build"))
CLOCHE = BUILD / "src/cli/cloche"
