/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FLA_TWIN_ACLNN_BASE_H
#define FLA_TWIN_ACLNN_BASE_H

#include "aclnn/acl_meta.h"

#ifdef __cplusplus
extern "C" {
#endif

ACL_FUNC_VISIBILITY aclnnStatus aclnnInit(const char *configPath);
ACL_FUNC_VISIBILITY aclnnStatus aclnnFinalize(void);

#ifdef __cplusplus
}
#endif
#endif /* FLA_TWIN_ACLNN_BASE_H */
