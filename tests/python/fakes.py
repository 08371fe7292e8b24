# SPDX-License-Identifier: Apache-2.0
"""Small OPPs made with the C compiler, so that loader and call layer are tested without a real one.

Each operator function gets the parameter list of its contract and writes down what it received.
"""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
from pathlib import Path

from fla_npu.spec import OpSpec, names, spec

ACL = r"""
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
typedef struct { int64_t dims[8], strides[8], storage; uint64_t rank; int dtype; void *data; } T;
int fake_live = 0, fake_executors = 0;
static char message[256];
void fake_say(const char *text) { strncpy(message, text, sizeof message - 1); }
void *aclCreateTensor(const int64_t *dims, uint64_t rank, int dtype, const int64_t *strides, int64_t offset,
                      int format, const int64_t *storage, uint64_t storageRank, void *data)
{
    T *t = calloc(1, sizeof *t);
    memcpy(t->dims, dims, rank * 8), memcpy(t->strides, strides, rank * 8);
    t->storage = 1;
    for (uint64_t i = 0; i < storageRank; ++i) t->storage *= storage[i];
    t->rank = rank, t->dtype = dtype, t->data = (char *)data + offset;
    ++fake_live;
    return format == 2 ? t : 0;
}
int aclDestroyTensor(const void *t) { free((void *)t), --fake_live; return 0; }
void *aclCreateIntArray(const int64_t *values, uint64_t count)
{
    int64_t *a = malloc((count + 1) * 8);
    a[0] = count, memcpy(a + 1, values, count * 8), ++fake_live;
    return a;
}
int aclDestroyIntArray(const void *a) { free((void *)a), --fake_live; return 0; }
const char *aclGetRecentErrMsg(void) { return message[0] ? message : 0; }
int aclDestroyAclOpExecutor(void *e) { --fake_executors; return 0; }
"""

HEAD = r"""
#include <stdint.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
typedef struct { int64_t dims[8], strides[8], storage; uint64_t rank; int dtype; void *data; } aclTensor;
typedef int64_t aclIntArray;
typedef int aclnnStatus;
typedef void aclOpExecutor;
int fake_status1 = 0, fake_status2 = 0, fake_launches = 0, fake_touch = 0;
uint64_t fake_workspace = 0;
void *fake_last_workspace = 0, *fake_last_stream = 0;
char fake_log[8192];
static void put(const char *text) { strncat(fake_log, text, sizeof fake_log - strlen(fake_log) - 1); }
static void tensor(const char *name, const aclTensor *t)
{
    char line[256];
    if (!t) { sprintf(line, "%s=null;", name), put(line); return; }
    sprintf(line, "%s=%d[", name, t->dtype), put(line);
    for (uint64_t i = 0; i < t->rank; ++i)
        sprintf(line, "%s%ld:%ld", i ? "," : "", (long)t->dims[i], (long)t->strides[i]), put(line);
    sprintf(line, "]s%ld;", (long)t->storage), put(line);
}
static void ints(const char *name, const aclIntArray *a)
{
    char line[64];
    sprintf(line, "%s=", name), put(line);
    if (!a) put("null");
    for (int64_t i = 0; a && i < a[0]; ++i) sprintf(line, "%s%ld", i ? "," : "", (long)a[i + 1]), put(line);
    put(";");
}
"""

PHASES = r"""
%(first)s
{
    char line[256];
    fake_log[0] = 0;
%(log)s
    *workspaceSize = fake_workspace, *executor = &fake_log;
    return fake_status1;
}
"""

SECOND = r"""
aclnnStatus %(name)s(void *workspace, uint64_t size, aclOpExecutor *executor, void *stream)
{
    fake_last_workspace = workspace, fake_last_stream = stream;
    if (fake_touch && size) memset(workspace, 1, size);
    return executor == &fake_log ? (++fake_launches, fake_status2) : 161002;
}
"""


def _log_lines(op: OpSpec) -> str:
    lines = []
    formats = {"bool": '"%d"', "int": '"%ld"', "double": '"%.17g"', "string": '"%s"'}
    for p in op.params:
        if p.kind in ("in", "out"):
            lines.append(f'    tensor("{p.name}", {p.c});')
        elif p.kind == "ints":
            lines.append(f'    ints("{p.name}", {p.c});')
        else:
            lines.append(f'    sprintf(line, "{p.name}=" {formats[p.type]} ";", {p.c}), put(line);')
    return "\n".join(lines)


def operator_source(ops: tuple[str, ...], leave_out: tuple[str, ...] = (), build_id: str = "") -> str:
    """C source of an operator library without the symbols in `leave_out`."""
    parts = [HEAD]
    for name in ops:
        op = spec(name)
        first, second = op.symbols
        if first not in leave_out:
            parts.append(PHASES % {"first": op.prototype, "log": _log_lines(op)})
        if second not in leave_out:
            parts.append(SECOND % {"name": second})
    if build_id:
        parts.append(f'const char fla_build_id[33] = "{build_id}";')
    return "\n".join(parts)


def compile_library(source: str, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = path.with_suffix(".c")
    text.write_text(source)
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", "-O1", "-o", path, text], check=True)
    text.unlink()
    return path


class FakeOpp:
    """A twin-like OPP below `root`; `library` gives access to what its functions recorded."""

    def __init__(self, root: Path, ops: tuple[str, ...] | None = None, **options) -> None:
        self.root = root
        self.vendor = root / "vendors" / "fla_npu"
        self.path = self.vendor / "op_api/lib/libcust_opapi.so"
        manifest = options.pop("manifest", None)
        identity = f'const char fla_build_id[33] = "{options.get("build_id", "")}";'
        compile_library(operator_source(ops if ops is not None else names(), **options), self.path)
        self.twin = compile_library(ACL + identity, self.path.with_name("libfla_twin.so"))
        if manifest is not None:
            (root / "manifest.json").write_text(json.dumps(manifest))

    @property
    def library(self) -> ctypes.CDLL:
        return ctypes.CDLL(str(self.path), mode=ctypes.RTLD_LOCAL)

    @property
    def acl(self) -> ctypes.CDLL:
        return ctypes.CDLL(str(self.twin), mode=ctypes.RTLD_LOCAL)

    def set(self, name: str, value: int, ctype=ctypes.c_int) -> None:
        ctype.in_dll(self.library, name).value = value

    def get(self, name: str, ctype=ctypes.c_int) -> int:
        return ctype.in_dll(self.library, name).value

    def log(self) -> dict[str, str]:
        """What the last phase 1 received, by contract name."""
        text = (ctypes.c_char * 8192).in_dll(self.library, "fake_log").value.decode()
        return dict(item.split("=", 1) for item in text.split(";") if item)

    def live_objects(self) -> int:
        return ctypes.c_int.in_dll(self.acl, "fake_live").value


def copy_opp(source: FakeOpp, root: Path) -> Path:
    shutil.copytree(source.root, root)
    return root
