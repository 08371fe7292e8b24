#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make a recorded toolkit: make.py DIR [--style template|asc]; then ASCEND_HOME_PATH=DIR.

What it is and what it proves is in README.md beside this file.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Header that is asked for -> the stand-in that has it.
HEADERS = {
    "register/op_def.h": "op_def.h",
    "register/op_def_registry.h": "op_def.h",
    "exe_graph/runtime/tiling_context.h": "host.h",
    "exe_graph/runtime/infer_shape_context.h": "host.h",
    "exe_graph/runtime/infer_datatype_context.h": "host.h",
    "tiling/platform/platform_ascendc.h": "host.h",
    "aclnn/aclnn_base.h": "opdev.h",
    "aclnn_kernels/contiguous.h": "opdev.h",
} | {
    f"opdev/{name}.h": "opdev.h"
    for name in ("common_types", "make_op_executor", "op_def", "op_dfx", "op_executor", "op_log", "platform",
                 "tensor_view_utils")
}  # fmt: skip
META = """// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <stdint.h>
typedef struct aclTensor aclTensor;
typedef struct aclIntArray aclIntArray;
typedef struct aclOpExecutor aclOpExecutor;
typedef void *aclrtStream;
typedef int32_t aclnnStatus;
"""
LIBRARIES = ("exe_graph", "tiling_api", "nnopbase", "ascendcl")
SCRIPTS = {
    "parse_ini_to_json": "parse_ini_to_json",
    "ascendc_compile_kernel": "compile",
    "insert_simplified_keys": "insert_simplified_keys",
    "ascendc_ops_config": "ascendc_ops_config",
}
TEMPLATE = "tools/op_project_templates/ascendc/customize"


def script(home: Path, place: str, program: str) -> None:
    """A program of the toolkit by its own name; the work is in tools/recorded.py."""
    path, tool = home / place, str(home / "tools/recorded.py")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "#!/usr/bin/env python3\nimport os\nimport sys\n"
        f"os.execv(sys.executable, [sys.executable, {tool!r}, {program!r}, *sys.argv[1:]])\n"
    )
    path.chmod(0o755)


def compile_libraries(home: Path) -> None:
    lib = home / "lib64"
    lib.mkdir(parents=True, exist_ok=True)
    command = ["g++", "-shared", "-fPIC", "-O1", "-D_GLIBCXX_USE_CXX11_ABI=0"]
    subprocess.run(
        [*command, HERE / "stub.cpp", "-Wl,-soname,libregister.so", "-o", lib / "libregister.so"], check=True
    )
    for name in LIBRARIES:
        so = lib / f"lib{name}.so"
        subprocess.run(
            [*command, "-x", "c++", "/dev/null", f"-Wl,-soname,lib{name}.so", "-o", so], check=True
        )
    subprocess.run(["ar", "rc", lib / "librt2_registry.a"], check=True)


def make(home: Path, style: str = "template") -> Path:
    """The toolkit's folder, made anew."""
    home = home.resolve()
    shutil.rmtree(home, ignore_errors=True)
    shutil.copytree(HERE / "include", home / "include")
    shutil.copytree(HERE / "tools", home / "tools", ignore=shutil.ignore_patterns("__pycache__"))
    for name, standin in HEADERS.items():
        path = home / "include" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        # The name makes the files differ: to GCC's pragma once, equal ones are one file.
        path.write_text(f'// {name}\n#pragma once\n#include "standin/{standin}"\n')
    (home / "include/aclnn/acl_meta.h").write_text(META)
    compile_libraries(home)
    if style == "asc":
        shutil.copytree(HERE / "asc", home / "lib64/cmake")
        script(home, "tools/opbuild/op_build", "op_build")
    else:
        shutil.copytree(HERE / "template", home / TEMPLATE)
        for name, program in SCRIPTS.items():
            script(home, f"{TEMPLATE}/cmake/util/{name}.py", program)
        script(home, f"{TEMPLATE}/cmake/util/gen_ops_filter.sh", "gen_ops_filter")
        script(home, "toolkit/tools/opbuild/op_build", "op_build")
        # CANN 8.1 has this one apart from the others.
        apart = home / "aarch64-linux/ascendc/include/highlevel_api"
        apart.mkdir(parents=True)
        (home / "include/tiling").rename(apart / "tiling")
    release = "8.5.0.recorded" if style == "asc" else "8.1.RC1.recorded"
    (home / "version.cfg").write_text(f"# recorded toolkit\ntoolkit_running_version=[{release}:{release}]\n")
    return home


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dir", type=Path)
    parser.add_argument("--style", choices=("template", "asc"), default="template")
    asked = parser.parse_args()
    print(make(asked.dir, asked.style))
    sys.exit(0)
