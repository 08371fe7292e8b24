# SPDX-License-Identifier: Apache-2.0
"""The CANN build from end to end, with the recorded toolkit (long tier).

A wheel with the toolkit's project template, an OPP with its CMake package, and every step broken once: the
build then fails, says which step it was, and leaves no wheel and no twin.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import fake_cann
import pytest
from recorded_toolkit import make_toolkit

ROOT = Path(__file__).resolve().parents[2]
OPS = {"chunk_fwd_h": "ChunkFwdH", "chunk_kda_fwd_finalize": "ChunkKdaFwdFinalize"}
BROKEN = "chunk_kda_fwd_finalize"  # the one operator of the builds that fail
SOCS = ("ascend910b", "ascend910_93")
VENDOR = "vendors/fla_npu/"
IMPL = VENDOR + "op_impl/ai_core/tbe/"
pytestmark = pytest.mark.full
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith(("FLA_NPU", "ASCEND", "PYTHONPATH"))}
ENVIRONMENT["PATH"] = f"{Path(sys.executable).parent}:{ENVIRONMENT['PATH']}"


def run(*command: object, **environment: object) -> subprocess.CompletedProcess:
    env = ENVIRONMENT | {key: str(value) for key, value in environment.items()}
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, env=env)


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """What git knows of this checkout, as files; tests may damage it."""
    copy = tmp_path_factory.mktemp("source with a blank")
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file() and not name.startswith(("tests/", "docs/")):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    return copy


def recorded(home: Path, program: str) -> list:
    lines = [json.loads(line) for line in (home / "record.jsonl").read_text().splitlines()]
    return [line["arguments"] for line in lines if line["program"] == program]


# The wheel, with the project template


@pytest.fixture(scope="module")
def template(tmp_path_factory) -> Path:
    return make_toolkit(tmp_path_factory.mktemp("toolkit") / "8.1", "template")


@pytest.fixture(scope="module")
def wheel(source, template, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    done = run(
        sys.executable, "-m", "pip", "wheel", source, "--no-deps", "-w", out,
        ASCEND_HOME_PATH=template, FLA_NPU_SOC=",".join(SOCS), FLA_NPU_OPS=",".join(OPS),
        FLA_NPU_KERNEL_OPTIONS="-g -sanitizer",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def opp(wheel, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("unpacked")
    zipfile.ZipFile(wheel).extractall(out)
    return out / "fla_npu/opp"


def files_of(root: Path) -> list[str]:
    return sorted(p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file())


def expected_tree(arch: str = platform.machine()) -> list[str]:
    """The layout of a custom OPP: libraries, headers, and per chip the kernels with their descriptions."""
    found = [
        "manifest.json",
        "vendors/config.ini",
        VENDOR + "version.info",
        VENDOR + "op_proto/inc/op_proto.h",
    ]
    found += [VENDOR + "op_api/lib/libcust_opapi.so", IMPL + "op_tiling/liboptiling.so"]
    found += [f"{IMPL}op_tiling/lib/linux/{arch}/libcust_opmaster_rt2.0.so"]
    found += [f"{VENDOR}op_proto/lib/linux/{arch}/libcust_opsproto_rt2.0.so"]
    found += [f"{VENDOR}op_api/include/aclnn_{op}.h" for op in OPS]
    found += [VENDOR + "framework/plugin/npu_supported_ops.json"]
    headers = {
        p.name for where in ("kernel/*.h", "stages/*/*.h") for p in (ROOT / "ascendc/common").glob(where)
    }
    headers |= {p.name for op in OPS for p in (ROOT / f"ascendc/ops/{op}/op_kernel").glob("*.h")}
    online = [*headers, *(op + suffix for op in OPS for suffix in (".cpp", ".py"))]
    found += [f"{IMPL}fla_npu_impl/dynamic/{name}" for name in online]
    for soc in SOCS:
        found += [f"{IMPL}config/{soc}/aic-{soc}-ops-info.json"]
        found += [f"{IMPL}kernel/config/{soc}/binary_info_config.json"]
        for op, op_type in OPS.items():
            found += [f"{IMPL}kernel/config/{soc}/{op}.json"]
            kernel = f"{IMPL}kernel/{soc}/{op}/{op_type}_#"
            found += [
                kernel + suffix for suffix in (".o", ".json") for _ in fake_cann.contract(op).dtype_columns()
            ]
    return sorted(found)


def without_hash(names: list[str]) -> list[str]:
    return sorted(re.sub(r"_[0-9a-f]{32}\.", "_#.", name) for name in names)


def test_tree_is_a_custom_opp(opp):
    assert without_hash(files_of(opp)) == expected_tree()


def test_name_and_manifest_say_what_it_is(wheel, opp):
    assert re.search(r"\+cann8\.1\.ascend910b\.ascend910\.93-py3-none-\w*linux", wheel.name)
    manifest = json.loads((opp / "manifest.json").read_text())
    assert (manifest["backend"], manifest["socs"]) == ("cann", list(SOCS))
    assert (manifest["cann"], manifest["kernel_options"]) == ("8.1.RC1.recorded", ["-g", "-sanitizer"])
    assert manifest["placeholder"] is True
    assert (opp / VENDOR / "version.info").read_text() == "custom_opp_compiler_version=8.1.RC1.recorded\n"


def test_metadata_is_what_the_contracts_say(opp):
    """The toolkit made it, from the registrations; the generator makes the same from the contracts."""
    info = fake_cann.codegen("emit_info")
    for soc in SOCS:
        made = json.loads((opp / IMPL / f"config/{soc}/aic-{soc}-ops-info.json").read_text())
        for op, op_type in OPS.items():
            ours = info.ops_info([fake_cann.contract(op)])[op_type]
            del ours["coreType"]  # the toolkit takes it from the kernel
            for key, fields in ours.items():
                for field, value in fields.items():
                    there = made[op_type][key][field]
                    same = (
                        float(there) == float(value) if re.fullmatch(r"-?\d+\.\d+", there) else there == value
                    )
                    assert same, (op, key, field, there, value)


def test_sources_for_compilation_on_line_are_whole(opp):
    """Every include of a kernel lies beside it, once; the wrappers and the list name every operator."""
    dynamic = opp / IMPL / "fla_npu_impl/dynamic"
    for path in [*dynamic.glob("*.cpp"), *dynamic.glob("*.h")]:
        for name in re.findall(r'^\s*#\s*include\s+"([^"]+)"', path.read_text(), re.M):
            assert (dynamic / name).is_file() or name == "kernel_operator.h", (path.name, name)
    for op, op_type in OPS.items():
        assert op_type in (dynamic / f"{op}.py").read_text()
    listed = json.loads((opp / VENDOR / "framework/plugin/npu_supported_ops.json").read_text())
    assert listed == {op_type: {"isGray": False, "isHeavy": False} for op_type in OPS.values()}


def test_check_symbols_finds_placeholders_and_nothing_else(wheel, look):
    for op in OPS:
        seen = look(wheel, op=op)
        assert seen.status == 1
        wrong = [f["text"] for f in seen.data["findings"] if "placeholder" not in f["text"]]
        assert not wrong, wrong
        assert seen.data["ops"][op]["kernels"] == {soc: True for soc in SOCS}


def test_libraries_are_of_one_build_and_of_no_machine(opp):
    from fla_npu.elf import read_elf

    build = json.loads((opp / "manifest.json").read_text())["build_id"]
    for path in opp.rglob("*.so"):
        elf = read_elf(path.read_bytes())
        assert (elf.build_id, elf.runpath) == (build, []), path
        assert b"toolkit" not in path.read_bytes(), path  # no path of the build machine


def test_what_the_toolkit_was_asked(wheel, template):
    assert recorded(template, "op_build")[0] == {"ops": sorted(OPS.values()), "others": []}
    compiled = recorded(template, "compile")
    assert {(c["op"], c["compute_unit"]) for c in compiled} == {(t, s) for t in OPS.values() for s in SOCS}
    for call in compiled:
        assert call["compile_options"].split() == ["-g", "-sanitizer"]
        assert call["tiling_lib"].endswith("libcust_opmaster_rt2.0.so") and call["build_tool"].endswith(
            "make"
        )
        assert call["config_ini"].endswith(f"aic-{call['compute_unit']}-ops-info.ini")
        assert call["dynamic_dir"].endswith("/binary/dynamic")
    for soc in SOCS:
        assert [a for a in recorded(template, "ascendc_ops_config") if a[3] == soc]


def test_an_operator_call_refuses_placeholders(opp, tmp_path):
    code = "from fla_npu import loader; loader.bind('chunk_fwd_h')"
    done = run(sys.executable, "-c", code, FLA_NPU_OPP_PATH=opp, PYTHONPATH=ROOT / "python")
    assert done.returncode != 0 and "holds placeholders, no device code" in done.stderr


# The CMake package of newer toolkits


@pytest.fixture(scope="module")
def newer(tmp_path_factory) -> Path:
    return make_toolkit(tmp_path_factory.mktemp("toolkit") / "8.5", "asc")


def configure(source: Path, build: Path, home: Path, *options: str) -> subprocess.CompletedProcess:
    command = ["cmake", "-S", source, "-B", build, "-G", "Ninja", f"-DFLA_NPU_OPS={BROKEN}", *options]
    return run(*command, ASCEND_HOME_PATH=home)


def test_newer_toolkit_makes_the_same_tree(source, newer, opp, tmp_path):
    done = configure(source, tmp_path / "build", newer, f"-DFLA_NPU_SOC={','.join(SOCS)}")
    assert done.returncode == 0, done.stderr
    done = run("cmake", "--build", tmp_path / "build", ASCEND_HOME_PATH=newer)
    assert done.returncode == 0, done.stdout[-3000:]
    made = without_hash(files_of(tmp_path / "build/package/opp"))
    assert made == [name for name in expected_tree() if "chunk_fwd_h" not in name]
    manifest = json.loads((tmp_path / "build/package/opp/manifest.json").read_text())
    assert manifest["version"].endswith("+cann8.5.ascend910b.ascend910.93")
    order = [json.loads(line)["program"] for line in (newer / "record.jsonl").read_text().splitlines()]
    steps = [name for name in dict.fromkeys(order) if name.startswith(("npu_", "op_build"))]
    assert steps == [
        "npu_op_package", "npu_op_code_gen", "op_build", "npu_op_library", "npu_op_kernel_library",
        "npu_op_package_add",
    ]  # fmt: skip
    # A kernel that changed: its copy, too, although the toolkit copies once.
    header = source / "ascendc/common/kernel/vec_tile.h"
    before = header.read_text()
    header.write_text(before + "// changed\n")
    try:
        done = run("cmake", "--build", tmp_path / "build", ASCEND_HOME_PATH=newer)
        assert done.returncode == 0, done.stdout[-3000:]
        copied = tmp_path / "build/package/opp" / IMPL / "fla_npu_impl/dynamic/vec_tile.h"
        assert copied.read_text().endswith("// changed\n")
    finally:
        header.write_text(before)
    library = (tmp_path / "build/package/opp" / VENDOR / "op_api/lib/libcust_opapi.so").read_bytes()
    assert b"aclnnChunkKdaFwdFinalizeGetWorkspaceSize" in library


# Every step, broken


@pytest.fixture(scope="module")
def built(source, tmp_path_factory) -> tuple[Path, Path, Path]:
    """(source, toolkit, build) of a build that succeeded, for one chip; each break is made good again."""
    home = make_toolkit(tmp_path_factory.mktemp("toolkit") / "broken", "template")
    build = tmp_path_factory.mktemp("build") / "b"
    assert configure(source, build, home).returncode == 0
    done = run("cmake", "--build", build, ASCEND_HOME_PATH=home)
    assert done.returncode == 0, done.stdout[-3000:]
    return source, home, build


FUNC = "tools/op_project_templates/ascendc/customize/cmake/func.cmake"
UTIL = "tools/op_project_templates/ascendc/customize/cmake/util"


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text, path
    path.write_text(text.replace(old, new))


# What is broken -> (how: source, toolkit -> environment of the build; step, words of the reason).
BREAKS = {
    "1 a toolkit that is none": (
        lambda s, h: {"ASCEND_HOME_PATH": "/nowhere"},
        "options",
        "is not a directory",
    ),
    "2 a toolkit without headers": (
        lambda s, h: (h / "include/register/op_def.h").unlink(),
        "options",
        "has no include/register/op_def.h",
    ),
    "3 a toolkit without build functions": (lambda s, h: (h / FUNC).unlink(), "options", "CANN 8.1 to 8.3"),
    "4 a chip that is none": (
        lambda s, h: {"FLA_NPU_SOC": "ascend310p"},
        "options",
        "ascend910b, ascend910_93",
    ),
    "5 a contract": (
        lambda s, h: edit(s / f"ascendc/ops/{BROKEN}/op.json", '"cores"', '"kores"'),
        "generate",
        "unknown keys",
    ),
    "6 two headers of one name": (
        lambda s, h: shutil.copy(
            s / "ascendc/common/kernel/vec_tile.h", s / f"ascendc/ops/{BROKEN}/op_kernel"
        ),
        "lay out",
        "would both become",
    ),
    "7 the template's functions": (
        lambda s, h: edit(h / FUNC, "function(", "funktion("),
        "configure",
        "funktion",
    ),
    "8 a plan that does not compile": (
        lambda s, h: edit(
            s / f"ascendc/ops/{BROKEN}/op_host/{BROKEN}_plan.cpp", "namespace fla", "namespace fla;"
        ),
        "registrations",
        f"{BROKEN}_plan.cpp",
    ),
    "9 op_build": (lambda s, h: {"FLA_RECORDED_FAULT": "opbuild"}, "opbuild", "internal error"),
    "10 a function that is missing": (
        lambda s, h: edit(h / FUNC, "function(add_simple_kernel_compile)", "function(another)"),
        "configure package",
        "add_simple_kernel_compile",
    ),
    "11 a header of opdev": (
        lambda s, h: (h / "include/opdev/op_log.h").unlink(),
        "host side",
        "opdev/op_log.h",
    ),
    "12 a library to link": (lambda s, h: (h / "lib64/libascendcl.so").unlink(), "host side", "-lascendcl"),
    "13 ops-info": (lambda s, h: {"FLA_RECORDED_FAULT": "ini"}, "host side", "parse_ini_to_json"),
    "14 a kernel": (lambda s, h: {"FLA_RECORDED_FAULT": f"kernel:{OPS[BROKEN]}"}, "kernels", OPS[BROKEN]),
    "15 the kernel compiler": (
        lambda s, h: (h / UTIL / "ascendc_compile_kernel.py").unlink(),
        "kernels",
        "ascendc_compile_kernel.py",
    ),
    "16 the simplified keys": (
        lambda s, h: {"FLA_RECORDED_FAULT": "keys"},
        "kernels",
        "insert_simplified_keys",
    ),
    "17 the index of kernels": (
        lambda s, h: {"FLA_RECORDED_FAULT": "config"},
        "kernels",
        "ascendc_ops_config",
    ),
    "18 a file to install": (lambda s, h: {"FLA_RECORDED_FAULT": "proto"}, "install", "op_proto.h"),
    "19 a kernel lost in silence": (
        lambda s, h: {"FLA_RECORDED_FAULT": f"lost:{OPS[BROKEN]}:ascend910b"},
        "kernels",
        "ascend910b",
    ),
    "20 a kernel under another name": (
        lambda s, h: {"FLA_RECORDED_FAULT": f"misnamed:{OPS[BROKEN]}"},
        "pack",
        f"kernel/ascend910b/{BROKEN}/{OPS[BROKEN]}_*.o is not in the tree",
    ),
    "21 a wrapper for compilation on line": (
        lambda s, h: {"FLA_RECORDED_FAULT": f"wrapper:{OPS[BROKEN]}"},
        "pack",
        f"fla_npu_impl/dynamic/{BROKEN}.py is not in the tree",
    ),
    "22 the list of operators": (
        lambda s, h: {"FLA_RECORDED_FAULT": "filter"},
        "host side",
        "gen_ops_filter",
    ),
}


# Outputs that are made anew, as in a fresh build.
ANEW = {"11": "CMakeFiles/cust_opapi.dir/op_api", "12": "libcust_opapi.so"}


@pytest.mark.parametrize("broken", BREAKS)
def test_a_broken_step_is_named_and_nothing_falls_back(built, broken, tmp_path):
    source, home, build = built
    how, step, reason = BREAKS[broken]
    kept = [(path, shutil.copytree(path, tmp_path / path.name)) for path in (source / "ascendc", home)]
    made = build / "cann/build" / ANEW.get(broken.split()[0], "none")
    try:
        shutil.rmtree(made) if made.is_dir() else made.unlink(missing_ok=True)
        change = how(source, home)
        environment = {"ASCEND_HOME_PATH": home} | (change if isinstance(change, dict) else {})
        soc = environment.get("FLA_NPU_SOC", "ascend910b")
        settings = ["-S", source, "-B", build, f"-DFLA_NPU_OPS={BROKEN}", f"-DFLA_NPU_SOC={soc}"]
        done = run("cmake", *settings, **environment)
        if done.returncode == 0:
            done = run("cmake", "--build", build, **environment)
        text = " ".join((done.stdout + done.stderr).split())
        assert done.returncode != 0
        assert f"step '{step}' failed" in text and reason in text, text[-1500:]
        if step in ("lay out", "configure", "registrations", "opbuild", "host side", "kernels", "install"):
            log = re.search(rf"step '{step}' failed.*?log: (\S+\.log)", text).group(1)
            assert Path(log).is_file()
        if broken.startswith(("8 ", "14 ")):
            assert f"step '{step}' failed at operator {OPS[BROKEN]}, {BROKEN}" in text
        assert "backend twin" not in text
    finally:
        for path, copy in kept:
            shutil.rmtree(path)
            shutil.copytree(copy, path)


def test_a_second_build_compiles_only_what_changed(built):
    """Nothing without a change; after one in a plan, that plan on the host side and no other file."""
    source, home, build = built
    plan = source / f"ascendc/ops/{BROKEN}/op_host/{BROKEN}_plan.cpp"
    before = plan.read_text()

    def objects() -> dict[str, int]:
        """But for op_proto.cc, which op_build writes anew."""
        done = run("cmake", "--build", build, ASCEND_HOME_PATH=home)
        assert done.returncode == 0, done.stdout[-3000:]
        found = (build / "cann/build").rglob("*.o")
        kept = (p for p in found if "binary" not in p.parts and p.name != "op_proto.cc.o")
        return {str(p.relative_to(build)): p.stat().st_mtime_ns for p in kept}

    configure(source, build, home)
    first = objects()
    again = objects()
    assert first and again == first
    plan.write_text(before + "// changed\n")
    try:
        changed = objects()
        names = {Path(name).name for name in changed if changed[name] != again[name]}
        assert names == {f"{BROKEN}_plan.cpp.o", "build_id.cpp.o"}
    finally:
        plan.write_text(before)


def test_a_failed_build_leaves_no_wheel(built, tmp_path):
    source, home, _ = built
    fault = {"FLA_RECORDED_FAULT": f"kernel:{OPS[BROKEN]}", "FLA_NPU_OPS": BROKEN}
    command = [sys.executable, "-m", "pip", "wheel", source, "--no-deps", "-w", tmp_path]
    done = run(*command, ASCEND_HOME_PATH=home, **fault)
    assert done.returncode != 0 and not list(tmp_path.iterdir())
    assert f"step 'kernels' failed at operator {OPS[BROKEN]}" in done.stdout + done.stderr
