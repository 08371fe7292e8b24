# SPDX-License-Identifier: Apache-2.0
"""The two-phase call: argument order, lifetimes, workspace, and what each status becomes."""

from __future__ import annotations

import ctypes
import gc
import os

import pytest
from fakes import FakeOpp
from fla_npu import aclnn, errors
from fla_npu.aclnn import TensorArg
from fla_npu.spec import spec


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    return FakeOpp(tmp_path_factory.mktemp("aclnn") / "opp")


@pytest.fixture
def fake(use_opp, shared):
    use_opp(shared.root)
    for name in ("fake_status1", "fake_status2", "fake_launches", "fake_touch"):
        shared.set(name, 0)
    shared.set("fake_workspace", 0, ctypes.c_uint64)
    return shared


def values(**changes):
    t = TensorArg(64, "bfloat16", (1, 2, 70, 128))
    return {
        "k": t, "w": t, "u": t, "gk": TensorArg(64, "float32", (1, 2, 70, 128)),
        "output_final_state": True, "use_exp2": True, "state_v_first": False,
        "h": TensorArg(64, "bfloat16", (1, 2, 2, 128, 128)), "v_new": t,
        "final_state": TensorArg(64, "float32", (1, 2, 128, 128)), **changes,
    }  # fmt: skip


def test_every_parameter_arrives_in_its_place(fake):
    aclnn.call("chunk_fwd_h", values(cu_seqlens=(0, 5, 70)))
    log = fake.log()
    assert list(log) == [p.name for p in spec("chunk_fwd_h").params]
    assert log["k"] == "27[1:17920,2:8960,70:128,128:1]s17920"
    assert log["gk"].startswith("0[")
    assert log["g"] == log["initial_state"] == log["chunk_indices"] == "null"
    assert log["cu_seqlens"] == "0,5,70"
    assert (log["output_final_state"], log["chunk_size"], log["save_new_value"]) == ("1", "64", "1")
    assert (log["use_exp2"], log["state_v_first"]) == ("1", "0")
    assert fake.live_objects() == 0


def test_doubles_and_strings(fake):
    aclnn.call("chunk_kda_fwd_prepare", {"layout": "TND", "scale": 0.1, "lower_bound": -2.5, "epsilon": 1e-6})
    log = fake.log()
    assert (log["layout"], float(log["scale"]), float(log["lower_bound"])) == ("TND", 0.1, -2.5)
    assert float(log["epsilon"]) == 1e-6
    assert list(log) == [p.name for p in spec("chunk_kda_fwd_prepare").params]


def test_strided_view(fake):
    view = TensorArg(64, "bfloat16", (1, 2, 70, 128), (99999, 256, 512, 2))
    aclnn.call("chunk_fwd_h", values(k=view))
    assert fake.log()["k"] == f"27[1:99999,2:256,70:512,128:2]s{1 + 256 + 69 * 512 + 127 * 2}"


def test_stream_and_workspace_are_passed(fake):
    fake.set("fake_workspace", 4096, ctypes.c_uint64)
    owner = ctypes.create_string_buffer(4096)
    aclnn.call("chunk_fwd_h", values(), stream=77, allocate=lambda n: (ctypes.addressof(owner), owner))
    assert fake.get("fake_last_stream", ctypes.c_void_p) == 77
    assert fake.get("fake_last_workspace", ctypes.c_void_p) == ctypes.addressof(owner)


def test_host_workspace_is_real_and_kept(fake):
    fake.set("fake_touch", 1)
    for size in (1 << 20, 64 << 10, 3 << 20, 1):
        fake.set("fake_workspace", size, ctypes.c_uint64)
        aclnn.call("chunk_fwd_h", values())
    address = fake.get("fake_last_workspace", ctypes.c_void_p)
    aclnn.call("chunk_fwd_h", values())
    assert fake.get("fake_last_workspace", ctypes.c_void_p) == address
    assert fake.get("fake_launches") == 5


def test_forked_child_has_a_workspace_of_its_own(fake):
    fake.set("fake_workspace", 4096, ctypes.c_uint64)
    aclnn.call("chunk_fwd_h", values())
    scratch = ctypes.c_char.from_address(fake.get("fake_last_workspace", ctypes.c_void_p))
    scratch.value = b"p"
    child = os.fork()
    if child == 0:
        scratch.value = b"c"
        os._exit(0)
    os.waitpid(child, 0)
    assert scratch.value == b"p"


def test_untouched_workspace_costs_no_memory(fake):
    def resident() -> int:
        with open("/proc/self/statm") as handle:
            return int(handle.read().split()[1]) * 4096

    gc.collect()
    before = resident()
    fake.set("fake_workspace", 1 << 30, ctypes.c_uint64)
    for _ in range(3):
        aclnn.call("chunk_fwd_h", values())
    assert resident() - before < 8 << 20


def test_no_workspace_is_a_null_pointer(fake):
    aclnn.call("chunk_fwd_h", values())
    assert fake.get("fake_last_workspace", ctypes.c_void_p) is None


@pytest.mark.parametrize("status", [161001, 161002])
def test_refused_arguments(fake, status):
    fake.acl.fake_say(b"chunk_fwd_h: k is wrong")
    fake.set("fake_status1", status)
    with pytest.raises(
        errors.ArgumentError, match=rf"GetWorkspaceSize refused the call \({status}\): .*k is wrong"
    ):
        aclnn.call("chunk_fwd_h", values())
    assert fake.get("fake_launches") == 0
    assert fake.live_objects() == 0


def test_twin_fault(fake):
    fake.acl.fake_say(b"twin fault: race: op chunk_fwd_h, core AIV 3")
    fake.set("fake_status2", 507015)
    with pytest.raises(
        errors.TwinFault, match=r"^twin fault: race.*\(aclnnChunkFwdH in .* returned 507015\)"
    ) as raised:
        aclnn.call("chunk_fwd_h", values())
    assert raised.value.status == 507015
    assert fake.live_objects() == 0


@pytest.mark.parametrize(("status", "word"), [(561003, "ASCEND_CUSTOM_OPP_PATH"), (361001, "361001")])
def test_other_failures_carry_code_text_op_and_library(fake, status, word):
    fake.acl.fake_say(b"cannot find bin of op")
    fake.set("fake_status1", status)
    with pytest.raises(errors.LaunchError) as raised:
        aclnn.call("chunk_fwd_h", values())
    text = str(raised.value)
    for part in (str(status), "cannot find bin of op", "chunk_fwd_h", str(fake.path), word):
        assert part in text
    assert raised.value.status == status


def test_failed_allocation_frees_everything(fake):
    fake.set("fake_workspace", 64, ctypes.c_uint64)

    def allocate(size):
        raise MemoryError("no room")

    before = ctypes.c_int.in_dll(fake.acl, "fake_executors").value
    with pytest.raises(MemoryError):
        aclnn.call("chunk_fwd_h", values(), allocate=allocate)
    assert fake.live_objects() == 0
    assert ctypes.c_int.in_dll(fake.acl, "fake_executors").value == before - 1


def test_the_call_follows_a_new_opp(use_opp, fresh_loader, fake, tmp_path):
    aclnn.call("chunk_fwd_h", values())
    other = FakeOpp(tmp_path / "opp")
    use_opp(other.root)
    launches = fake.get("fake_launches")
    aclnn.call("chunk_fwd_h", values())
    assert other.get("fake_launches") == 1
    assert fake.get("fake_launches") == launches
