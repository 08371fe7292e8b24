// SPDX-License-Identifier: Apache-2.0
// What stands behind the opaque ACL handles. The twin knows no operator: an executor is anything
// that can run once its caller brings a workspace.
#ifndef FLA_TWIN_ACL_OBJECTS_H
#define FLA_TWIN_ACL_OBJECTS_H

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "aclnn/acl_meta.h"

struct aclTensor {
    std::vector<int64_t> dims, strides, storageDims;
    int64_t offset = 0;
    aclDataType dtype = ACL_DT_UNDEFINED;
    aclFormat format = ACL_FORMAT_ND;
    void *data = nullptr;

    /// Address of the first element of the view.
    char *Begin() const
    {
        return static_cast<char *>(data) + offset * static_cast<int64_t>(ItemSize());
    }
    ACL_FUNC_VISIBILITY size_t ItemSize() const;
    ACL_FUNC_VISIBILITY int64_t Count() const;
    ACL_FUNC_VISIBILITY bool Contiguous() const;
    /// Bytes from Begin() that the view touches: [first, second).
    ACL_FUNC_VISIBILITY std::pair<int64_t, int64_t> Extent() const;
};

struct aclIntArray {
    std::vector<int64_t> values;
};

struct aclOpExecutor {
    virtual ~aclOpExecutor() = default;
    virtual aclnnStatus Run(void *workspace, uint64_t workspaceSize, aclrtStream stream) = 0;
    bool repeatable = false;
};

namespace twin
{

/// Sets the text that aclGetRecentErrMsg of this thread hands over next, and returns `status`.
ACL_FUNC_VISIBILITY int Fail(int status, const std::string &text);

/// Hands a new executor to a caller of phase 1.
ACL_FUNC_VISIBILITY aclOpExecutor *Publish(aclOpExecutor *executor);

/// Phase 2 of every operator: runs a published executor and destroys it unless it is repeatable.
ACL_FUNC_VISIBILITY aclnnStatus RunPublished(aclOpExecutor *executor, void *workspace,
                                             uint64_t workspaceSize, aclrtStream stream);

/// Copies a strided view into contiguous memory.
ACL_FUNC_VISIBILITY void CopyContiguous(const aclTensor &view, void *to);

}  // namespace twin
#endif  // FLA_TWIN_ACL_OBJECTS_H
