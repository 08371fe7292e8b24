# SPDX-License-Identifier: Apache-2.0
"""Contracts as objects."""

from __future__ import annotations

import pytest
from fla_npu import errors
from fla_npu.spec import names, spec

PREPARE = (
    "aclnnStatus aclnnChunkKdaFwdPrepareGetWorkspaceSize(const aclTensor *q, const aclTensor *k, "
    "const aclTensor *v, const aclTensor *g, const aclTensor *beta, const aclTensor *aLogOptional, "
    "const aclTensor *dtBiasOptional, const aclIntArray *cuSeqlensOptional, "
    "const aclIntArray *chunkIndicesOptional, const char *layout, double scale, int64_t chunkSize, "
    "double epsilon, bool useQkL2normInKernel, bool useGateInKernel, bool useBetaSigmoidInKernel, "
    "bool allowNegEigval, bool safeGate, double lowerBound, bool useExp2, const aclTensor *gkOut, "
    "const aclTensor *aqkOut, const aclTensor *akkOut, const aclTensor *wOut, const aclTensor *uOut, "
    "const aclTensor *qgOut, const aclTensor *kgOut, const aclTensor *qgScaledOut, const aclTensor *qHatOut, "
    "const aclTensor *kHatOut, const aclTensor *qRstdOut, const aclTensor *kRstdOut, "
    "const aclTensor *betaEffOut, uint64_t *workspaceSize, aclOpExecutor **executor)"
)


def test_frozen_prototype():
    assert spec("chunk_kda_fwd_prepare").prototype == PREPARE


def test_every_contract_reads():
    assert {"chunk_kda_fwd_prepare", "chunk_fwd_h", "chunk_kda_fwd_finalize"} <= set(names())
    for name in names():
        op = spec(name)
        assert op.symbols == (op.aclnn + "GetWorkspaceSize", op.aclnn)
        assert len(op.prototype_hash) == 64
        for param in op.of("in", "out"):
            assert param.dtypes
            assert param.dims


def test_axes():
    op = spec("chunk_kda_fwd_prepare")
    assert op.param("dt_bias").shapes("BNSD") == ((("HV", "K"),), (("HV",), ("K",)))
    assert op.param("q").shapes("TND") == ((("T",), ("HK",), ("K",)),)
    assert op.modes["none"] == ()


def test_unknown():
    with pytest.raises(errors.ArgumentError, match="it has chunk_fwd_h"):
        spec("chunk_fwd")
