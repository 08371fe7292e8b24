// SPDX-License-Identifier: Apache-2.0
// The vector instructions, one family per header.
#ifndef FLA_TWIN_API_VECTOR_H
#define FLA_TWIN_API_VECTOR_H

#include "vec_binary.h"
#include "vec_cast.h"
#include "vec_gather.h"
#include "vec_misc.h"
#include "vec_reduce.h"
#include "vec_scalar.h"
#include "vec_select.h"
#include "vec_unary.h"

#endif  // FLA_TWIN_API_VECTOR_H
