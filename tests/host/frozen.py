# SPDX-License-Identifier: Apache-2.0
"""The public C prototypes, typed by hand from the published ABI: what our generated headers must equal."""

PREPARE = """
aclnnStatus aclnnChunkKdaFwdPrepareGetWorkspaceSize(
    const aclTensor *q, const aclTensor *k, const aclTensor *v, const aclTensor *g, const aclTensor *beta,
    const aclTensor *aLogOptional, const aclTensor *dtBiasOptional,
    const aclIntArray *cuSeqlensOptional, const aclIntArray *chunkIndicesOptional,
    const char *layout, double scale, int64_t chunkSize, double epsilon,
    bool useQkL2normInKernel, bool useGateInKernel, bool useBetaSigmoidInKernel, bool allowNegEigval,
    bool safeGate, double lowerBound, bool useExp2,
    const aclTensor *gkOut, const aclTensor *aqkOut, const aclTensor *akkOut, const aclTensor *wOut,
    const aclTensor *uOut, const aclTensor *qgOut, const aclTensor *kgOut, const aclTensor *qgScaledOut,
    const aclTensor *qHatOut, const aclTensor *kHatOut, const aclTensor *qRstdOut, const aclTensor *kRstdOut,
    const aclTensor *betaEffOut, uint64_t *workspaceSize, aclOpExecutor **executor);
"""

FWD_H = """
aclnnStatus aclnnChunkFwdHGetWorkspaceSize(
    const aclTensor *k, const aclTensor *w, const aclTensor *u,
    const aclTensor *gOptional, const aclTensor *gkOptional, const aclTensor *initialStateOptional,
    bool outputFinalState, int64_t chunkSize, bool saveNewValue,
    const aclIntArray *cuSeqlensOptional, const aclIntArray *chunkIndicesOptional,
    bool useExp2, bool stateVFirst,
    const aclTensor *hOut, const aclTensor *vNewOut, const aclTensor *finalStateOut,
    uint64_t *workspaceSize, aclOpExecutor **executor);
"""

FINALIZE = """
aclnnStatus aclnnChunkKdaFwdFinalizeGetWorkspaceSize(
    const aclTensor *qgScaled, const aclTensor *aqk, const aclTensor *vNew, const aclTensor *h,
    const aclIntArray *cuSeqlensOptional, const aclIntArray *chunkIndicesOptional,
    const char *outputLayout, bool stateVFirst, const aclTensor *attnOut,
    uint64_t *workspaceSize, aclOpExecutor **executor);
"""

BWD_PREPARE = """
aclnnStatus aclnnChunkKdaBwdPrepareGetWorkspaceSize(
    const aclTensor *aqk, const aclTensor *vNew, const aclTensor *dO, const aclTensor *h,
    const aclIntArray *cuSeqlensOptional, const aclIntArray *chunkIndicesOptional,
    double scale, int64_t chunkSize, bool stateVFirst,
    const aclTensor *dAqkOut, const aclTensor *dvOut, const aclTensor *dqRawOut,
    uint64_t *workspaceSize, aclOpExecutor **executor);
"""

BWD_DHU = """
aclnnStatus aclnnChunkGatedDeltaRuleBwdDhuGetWorkspaceSize(
    const aclTensor *q, const aclTensor *k, const aclTensor *w, const aclTensor *dO, const aclTensor *dv,
    const aclTensor *gOptional, const aclTensor *gkOptional, const aclTensor *h0Optional, const aclTensor *dhtOptional,
    const aclIntArray *cuSeqlensOptional, const aclIntArray *chunkIndicesOptional,
    double scale, int64_t chunkSize, bool useExp2, bool stateVFirst,
    const aclTensor *dhOut, const aclTensor *dh0Out, const aclTensor *dv2Out,
    uint64_t *workspaceSize, aclOpExecutor **executor);
"""

FWD_V2 = """
aclnnStatus aclnnChunkKdaFwdV2GetWorkspaceSize(
    const aclTensor *q, const aclTensor *k, const aclTensor *v, const aclTensor *g, const aclTensor *beta,
    const aclTensor *aLogOptional, const aclTensor *dtBiasOptional, const aclTensor *initialStateOptional,
    const aclIntArray *cuSeqlensOptional, const aclIntArray *chunkIndicesOptional,
    const char *layout, double scale, int64_t chunkSize, bool safeGate, double lowerBound,
    bool useGateInKernel, bool stateVFirst, double epsilon, bool useQkL2normInKernel,
    bool useBetaSigmoidInKernel, bool allowNegEigval, bool useExp2,
    const aclTensor *attnOut, const aclTensor *finalStateOut, const aclTensor *gkOut, const aclTensor *aqkOut,
    const aclTensor *akkOut, const aclTensor *wOut, const aclTensor *uOut, const aclTensor *qgOut,
    const aclTensor *kgOut, const aclTensor *vNewOut, const aclTensor *hOut,
    const aclTensor *qHatOut, const aclTensor *kHatOut, const aclTensor *qRstdOut, const aclTensor *kRstdOut,
    const aclTensor *betaEffOut, uint64_t *workspaceSize, aclOpExecutor **executor);
"""

BWD = """
aclnnStatus aclnnChunkKdaBwdGetWorkspaceSize(
    const aclTensor *q, const aclTensor *k, const aclTensor *v, const aclTensor *beta, const aclTensor *gk,
    const aclTensor *aqk, const aclTensor *akk, const aclTensor *wOptional, const aclTensor *qgOptional,
    const aclTensor *kgOptional, const aclTensor *vNewOptional, const aclTensor *hOptional, const aclTensor *dO,
    const aclTensor *rawGOptional, const aclTensor *aLogOptional, const aclTensor *dtBiasOptional,
    const aclTensor *initialStateOptional, const aclTensor *dhtOptional,
    const aclIntArray *cuSeqlensOptional, const aclIntArray *chunkIndicesOptional,
    double scale, int64_t chunkSize, bool safeGate, bool useGateInKernel, double lowerBound,
    bool disableRecompute, bool useExp2, bool stateVFirst,
    const aclTensor *dqOut, const aclTensor *dkOut, const aclTensor *dvOut, const aclTensor *dbOut,
    const aclTensor *dgOut, const aclTensor *dh0OutOptional, const aclTensor *dAOutOptional,
    const aclTensor *dBiasOutOptional, uint64_t *workspaceSize, aclOpExecutor **executor);
"""

BWD_V2 = """
aclnnStatus aclnnChunkKdaBwdV2GetWorkspaceSize(
    const aclTensor *q, const aclTensor *k, const aclTensor *v, const aclTensor *beta, const aclTensor *gk,
    const aclTensor *aqk, const aclTensor *akk, const aclTensor *wOptional, const aclTensor *qgOptional,
    const aclTensor *kgOptional, const aclTensor *vNewOptional, const aclTensor *hOptional, const aclTensor *dO,
    const aclTensor *rawGOptional, const aclTensor *aLogOptional, const aclTensor *dtBiasOptional,
    const aclTensor *initialStateOptional, const aclTensor *dhtOptional,
    const aclIntArray *cuSeqlensOptional, const aclIntArray *chunkIndicesOptional,
    double scale, int64_t chunkSize, bool safeGate, bool useGateInKernel, double lowerBound,
    bool disableRecompute, bool useExp2, bool stateVFirst,
    const aclTensor *qRstdOptional, const aclTensor *kRstdOptional,
    const aclTensor *dqOut, const aclTensor *dkOut, const aclTensor *dvOut, const aclTensor *dbOut,
    const aclTensor *dgOut, const aclTensor *dh0OutOptional, const aclTensor *dAOutOptional,
    const aclTensor *dBiasOutOptional, uint64_t *workspaceSize, aclOpExecutor **executor);
"""

SUMMARY = """
aclnnStatus aclnnPreProcessFwdKernelMergedGetWorkspaceSize(
    const aclTensor *k, const aclTensor *w, const aclTensor *u,
    const aclTensor *gOptional, const aclTensor *gkOptional,
    const aclTensor *bgOptional, const aclTensor *vOptional,
    const aclIntArray *cuSeqlensOptional, int64_t chunkSize, const aclTensor *hmOut,
    uint64_t *workspaceSize, aclOpExecutor **executor);
"""

SUMMARY_BWD = """
aclnnStatus aclnnPreProcessBwdKernelMergedGetWorkspaceSize(
    const aclTensor *q, const aclTensor *k, const aclTensor *w, const aclTensor *dO, const aclTensor *dv,
    const aclTensor *gOptional, const aclTensor *gkOptional, const aclIntArray *cuSeqlensOptional,
    double scale, int64_t chunkSize, const aclTensor *dhmOut,
    uint64_t *workspaceSize, aclOpExecutor **executor);
"""

MERGE = """
aclnnStatus aclnnMergeFwdBwdKernelGetWorkspaceSize(
    const aclTensor *h, const aclTensor *agHm, int64_t preOrPostNumRanks, int64_t rank,
    bool forward, bool stateVFirst, uint64_t *workspaceSize, aclOpExecutor **executor);
"""

PHASE_TWO = "aclnnStatus {name}(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream);"

FROZEN = {
    "chunk_kda_fwd_prepare": PREPARE,
    "chunk_fwd_h": FWD_H,
    "chunk_kda_fwd_finalize": FINALIZE,
    "chunk_kda_bwd_prepare": BWD_PREPARE,
    "chunk_gated_delta_rule_bwd_dhu": BWD_DHU,
    "chunk_kda_fwd_v2": FWD_V2,
    "chunk_kda_bwd": BWD,
    "chunk_kda_bwd_v2": BWD_V2,
    "pre_process_fwd_kernel_merged": SUMMARY,
    "pre_process_bwd_kernel_merged": SUMMARY_BWD,
    "merge_fwd_bwd_kernel": MERGE,
}
