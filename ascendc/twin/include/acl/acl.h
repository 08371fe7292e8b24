/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FLA_TWIN_ACL_H
#define FLA_TWIN_ACL_H

#include "acl/acl_base.h"
#include "acl/acl_rt.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Starting twice without finishing in between is an error, as on CANN; aclnn calls need no start.
 */
ACL_FUNC_VISIBILITY aclError aclInit(const char *configPath);
ACL_FUNC_VISIBILITY aclError aclFinalize(void);

#ifdef __cplusplus
}
#endif
#endif /* FLA_TWIN_ACL_H */
