// SPDX-License-Identifier: Apache-2.0
// A C library with the ACL functions and the prototype of aclnnChunkKdaFwdFinalize that does what a
// test asks for: attn_out = 2 * v_new elementwise (bfloat16 bits are shifted by one exponent step),
// after a delay, with a workspace, or with an error. It counts what it made and freed.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    void *data;
    int64_t count;
    int64_t dims[8];
    int rank, dtype;
} Tensor;

typedef struct {
    const Tensor *in, *out;
    uint64_t workspace;
} Executor;

int fake_delay_us, fake_phase1_status, fake_phase2_status;
uint64_t fake_workspace;
int fake_alive, fake_launches, fake_dropped, fake_last_rank, fake_workspace_aligned = 1;
char fake_layout[16];
static char message[64];

void *aclCreateTensor(const int64_t *dims, uint64_t rank, int dtype, const int64_t *strides,
                      int64_t offset, int format, const int64_t *storage, uint64_t storageRank,
                      void *data)
{
    (void)strides, (void)offset, (void)format, (void)storage, (void)storageRank;
    Tensor *t = calloc(1, sizeof *t);
    t->data = data, t->rank = (int)rank, t->dtype = dtype, t->count = 1;
    for (uint64_t i = 0; i < rank; ++i) t->count *= t->dims[i] = dims[i];
    ++fake_alive;
    return t;
}

int aclDestroyTensor(const void *tensor)
{
    free((void *)tensor);
    --fake_alive;
    return 0;
}

void *aclCreateIntArray(const int64_t *values, uint64_t count)
{
    int64_t *copy = malloc((count + 1) * sizeof *copy);
    memcpy(copy, values, count * sizeof *copy);
    ++fake_alive;
    return copy;
}

int aclDestroyIntArray(const void *array)
{
    return aclDestroyTensor(array);
}

const char *aclGetRecentErrMsg(void)
{
    return message;
}

int aclnnChunkKdaFwdFinalizeGetWorkspaceSize(const void *qg, const void *aqk, const void *vNew,
                                             const void *h, const void *cu, const void *indices,
                                             const char *layout, _Bool vFirst, const void *out,
                                             uint64_t *workspace, void **executor)
{
    (void)qg, (void)aqk, (void)h, (void)cu, (void)indices, (void)vFirst;
    strcpy(message, "fake refusal of phase 1");
    if (fake_phase1_status)
        return fake_phase1_status;
    strncpy(fake_layout, layout, sizeof fake_layout - 1);
    Executor *e = malloc(sizeof *e);
    e->in = vNew, e->out = out, e->workspace = *workspace = fake_workspace;
    fake_last_rank = ((const Tensor *)vNew)->rank;
    *executor = e;
    return 0;
}

int aclnnChunkKdaFwdFinalize(void *workspace, uint64_t bytes, void *executor, void *stream)
{
    Executor *e = executor;
    (void)stream;
    if (fake_delay_us)
        usleep((unsigned)fake_delay_us);
    fake_workspace_aligned &= (uintptr_t)workspace % 512 == 0 && bytes == e->workspace;
    if (workspace)
        memset(workspace, 0x5a, bytes);
    ++fake_launches;
    strcpy(message, "twin fault: fake fault of phase 2");
    int status = fake_phase2_status;
    const uint16_t *from = e->in->data;
    uint16_t *to = e->out->data;
    // Doubling a bfloat16 adds one to the exponent; zero stays zero.
    for (int64_t i = 0; !status && i < e->in->count; ++i) {
        to[i] = (uint16_t)(from[i] & 0x7f80 ? from[i] + 0x80 : from[i]);
    }
    free(e);
    return status;
}

int aclDestroyAclOpExecutor(void *executor)
{
    free(executor);
    ++fake_dropped;
    return 0;
}
