"""Runs the tests of the kernel and the gradients on other versions of torch, each in an environment of its own.

    python -m bench.versions 2.10.0 2.15.0 --environments ~/torch-versions --save results/versions.json

An environment that is missing is made. Builds of torch for CUDA take 5 to 7 GB each; the tests run on the CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

from bench.step import origin

ROOT = Path(__file__).resolve().parent.parent
TESTED = ("tests/kernel", "tests/gradients", "src/sordino/kernel", "src/sordino/gradients")
_SHOWN = "import json, torch; print(json.dumps([torch.__version__, torch.cuda.is_available()]))"


def environment(version: str, folder: Path) -> Path:
    """The Python of an environment with this version of torch."""
    python = folder / f"torch-{version}" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(python.parent.parent)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", f"torch=={version}", "-e", f"{ROOT}[dev]"]
        subprocess.run([*install, "-e", str(ROOT / "papers")], check=True)
    return python


def outcomes(python: Path, marker: str) -> dict[str, Any]:
    """Names of the tests that pass, and of those that fail or are skipped with the reason."""
    path = os.pathsep.join(str(ROOT / part) for part in ("src", "papers"))
    surroundings = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [str(python), "-m", "pytest", "-m", marker, "-p", "no:cacheprovider", f"--junitxml={report}", *TESTED]
        # Exit code 1 is that of failing tests, which are the result. Others mean that the tests did not run.
        code = subprocess.run(command, cwd=ROOT, env=surroundings).returncode
        if code not in (0, 1):
            raise RuntimeError(f"pytest of {python} ended with code {code}.")
        return by_outcome(ElementTree.parse(report).getroot())


def by_outcome(report: ElementTree.Element) -> dict[str, Any]:
    """Sorts the test cases of a JUnit report."""
    passed, rest = list[str](), {"failed": dict[str, str](), "skipped": dict[str, str]()}
    for case in report.iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        ended = [(kind, part) for part in case for kind in [_KINDS.get(part.tag)] if kind is not None]
        for kind, part in ended:
            rest[kind][name] = (part.get("message") or "").partition("\n")[0][:200]
        if not ended:
            passed.append(name)
    return {"passed": len(passed), **rest, "names_of_passed": sorted(passed)}


_KINDS = {"failure": "failed", "error": "failed", "skipped": "skipped"}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("versions", nargs="+", help="versions of torch, such as 2.10.0")
    arguments.add_argument("--environments", type=Path, required=True, help="a folder outside the repository")
    arguments.add_argument("--marker", default="not slow", help="which tests; an empty one runs all")
    arguments.add_argument("--save", type=Path, help="where to write the result as JSON")
    chosen = arguments.parse_args()
    rows = []
    for version in chosen.versions:
        python = environment(version, chosen.environments)
        shown = subprocess.run([str(python), "-c", _SHOWN], check=True, capture_output=True, text=True).stdout
        installed, has_gpu = json.loads(shown)
        rows.append({"torch": installed, "gpu": has_gpu, **outcomes(python, chosen.marker)})
        print({name: value for name, value in rows[-1].items() if name != "names_of_passed"}, flush=True)
    if chosen.save:
        system = {"system": f"{platform.system()}, Python {platform.python_version()}", "tested": TESTED}
        in_all = sorted(set.intersection(*(set(row.pop("names_of_passed")) for row in rows)))
        result = {**origin("bench.versions"), **system, "marker": chosen.marker, "versions": rows}
        result["passed_in_all_versions"] = in_all
        chosen.save.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
