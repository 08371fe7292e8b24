# SPDX-License-Identifier: Apache-2.0
"""What `import fla_npu` must not do, measured in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys

PROBE = """
import json, os, sys, time
def maps():
    return {line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}
before_modules, before_maps, before_env = set(sys.modules), maps(), dict(os.environ)
start = time.perf_counter()
import fla_npu
seconds = time.perf_counter() - start
print(json.dumps({
    "seconds": seconds,
    "modules": sorted(set(sys.modules) - before_modules),
    "libraries": sorted(maps() - before_maps),
    "environment": dict(os.environ) == before_env,
    "after": sorted(n for n in dir(fla_npu)),
}))
"""


def probe(code: str = PROBE, **environment: str) -> dict:
    import os

    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **environment},
    )
    return json.loads(done.stdout)


def test_import_is_pure_and_quick():
    seen = min((probe() for _ in range(3)), key=lambda p: p["seconds"])
    top = {name.split(".")[0] for name in seen["modules"]}
    assert not top & {"torch", "mindspore", "numpy", "ctypes", "click", "rich"}, top
    assert not [lib for lib in seen["libraries"] if "fla" in lib or "opapi" in lib or "ascend" in lib]
    assert seen["environment"]
    assert seen["seconds"] < 0.060


def test_bad_environment_does_not_matter_at_import():
    seen = probe(FLA_NPU_OPP_PATH="/nowhere", ASCEND_CUSTOM_OPP_PATH="/nowhere:", ASCEND_OPP_PATH="/x")
    assert seen["environment"]


def test_errors_and_checks_need_no_framework():
    code = PROBE.replace(
        "import fla_npu\n",
        "import fla_npu, fla_npu.errors, fla_npu.checks, fla_npu.loader, fla_npu.parallel\n",
    )
    top = {name.split(".")[0] for name in probe(code)["modules"]}
    assert not top & {"torch", "mindspore", "numpy"}, top


def test_a_broken_framework_does_not_break_the_import(tmp_path):
    for name in ("torch", "torch_npu", "mindspore"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('broken')")
    assert probe(PYTHONPATH=str(tmp_path) + ":" + ":".join(p for p in sys.path if p))["environment"]


def test_public_names():
    import fla_npu

    assert {"build_info", "opp_path", "ops", "torch", "mindspore"} <= set(dir(fla_npu))
    assert isinstance(fla_npu.build_info()["backend"], str)
    try:
        _ = fla_npu.no_such_thing
    except AttributeError as error:
        assert "no_such_thing" in str(error)
    else:
        raise AssertionError("an unknown attribute must raise AttributeError")
