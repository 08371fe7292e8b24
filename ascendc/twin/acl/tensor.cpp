// SPDX-License-Identifier: Apache-2.0
// aclTensor and aclIntArray: creation, queries, contiguous copies.
#include <algorithm>
#include <cstring>
#include <new>

#include "acl/objects.h"

// 0 for what the twin has no arithmetic for; such a tensor is refused by every operator's contract.
extern "C" size_t aclDataTypeSize(aclDataType dataType)
{
    switch (dataType) {
        case ACL_INT8:
        case ACL_UINT8:
        case ACL_BOOL:
            return 1;
        case ACL_FLOAT16:
        case ACL_BF16:
        case ACL_INT16:
        case ACL_UINT16:
            return 2;
        case ACL_FLOAT:
        case ACL_INT32:
        case ACL_UINT32:
            return 4;
        case ACL_INT64:
        case ACL_UINT64:
        case ACL_DOUBLE:
            return 8;
        default:
            return 0;
    }
}

// A tensor is a view: sizes, strides and an offset in elements over memory that stays the caller's.

size_t aclTensor::ItemSize() const
{
    return aclDataTypeSize(dtype);
}

/// Elements of the view; the storage behind it may be larger or, with stride 0, smaller.
int64_t aclTensor::Count() const
{
    int64_t count = 1;
    for (int64_t size : dims) {
        count *= size;
    }
    return count;
}

bool aclTensor::Contiguous() const
{
    // The stride of an axis of length 1 is never used, whatever a framework wrote there.
    int64_t expected = 1;
    for (size_t axis = dims.size(); axis-- > 0;) {
        if (dims[axis] != 1 && strides[axis] != expected) {
            return false;
        }
        expected *= dims[axis];
    }
    return true;
}

std::pair<int64_t, int64_t> aclTensor::Extent() const
{
    // A negative stride reaches below the first element.
    int64_t low = 0, high = 0;
    for (size_t axis = 0; axis < dims.size(); ++axis) {
        const int64_t reach = (dims[axis] - 1) * strides[axis];
        (reach < 0 ? low : high) += reach;
    }
    // An empty view touches nothing, wherever it points.
    const int64_t item = static_cast<int64_t>(ItemSize());
    return Count() == 0 ? std::pair<int64_t, int64_t>{0, 0}
                        : std::pair{low * item, (high + 1) * item};
}

namespace
{

/// Shape queries hand out new[] arrays that the caller deletes: CANN's convention.
aclnnStatus CopyOut(const aclTensor *tensor, const std::vector<int64_t> aclTensor::*member,
                    int64_t **out, uint64_t *count)
{
    if (tensor == nullptr || out == nullptr || count == nullptr) {
        return twin::Fail(161001, "a shape query was given a null pointer");
    }
    const std::vector<int64_t> &values = tensor->*member;
    *out = new (std::nothrow) int64_t[values.size() + 1];  // + 1: rank 0 is a legal size
    if (*out == nullptr) {
        return twin::Fail(561103, "out of memory");
    }
    std::copy(values.begin(), values.end(), *out);
    // Strides are in elements, as everywhere in ACL.
    *count = values.size();
    return 0;
}

/// Queries of one number: offset, format, dtype, address.
/// A null tensor or a null place for the answer is the caller's error, and its status says so.
/// Nothing is changed then.
template <typename Value>
aclnnStatus Get(const aclTensor *tensor, Value aclTensor::*member, Value *out)
{
    if (tensor == nullptr || out == nullptr) {
        return twin::Fail(161001, "a tensor query was given a null pointer");
    }
    *out = tensor->*member;
    return 0;
}

/// Copies axes [axis, rank) of a view; a contiguous innermost axis is one memcpy.
char *CopyAxis(const aclTensor &view, size_t axis, const char *from, char *to)
{
    const size_t item = view.ItemSize();
    if (axis == view.dims.size()) {
        std::memcpy(to, from, item);
        return to + item;
    }
    const int64_t size = view.dims[axis], step = view.strides[axis] * static_cast<int64_t>(item);
    if (axis + 1 == view.dims.size() && view.strides[axis] == 1) {
        std::memcpy(to, from, size * item);
        return to + size * item;
    }
    for (int64_t i = 0; i < size; ++i) {
        to = CopyAxis(view, axis + 1, from + i * step, to);
    }
    return to;
}

}  // namespace

// Inputs may be any view; a kernel reads rows. Phase 2 makes this copy into its workspace.
void twin::CopyContiguous(const aclTensor &view, void *to)
{
    CopyAxis(view, 0, view.Begin(), static_cast<char *>(to));
}

// The C functions. A null handle is answered with a status and a text, never a crash; exceptions
// stay here.

extern "C" aclTensor *aclCreateTensor(const int64_t *viewDims, uint64_t viewDimsNum,
                                      aclDataType dataType, const int64_t *stride, int64_t offset,
                                      aclFormat format, const int64_t *storageDims,
                                      uint64_t storageDimsNum, void *tensorData)
{
    if (viewDims == nullptr && viewDimsNum != 0) {
        twin::Fail(ACL_ERROR_INVALID_PARAM, "aclCreateTensor: viewDims is null");
        return nullptr;
    }
    try {
        // Everything is copied: the caller's arrays may go when this returns.
        auto *tensor = new aclTensor;
        tensor->dims.assign(viewDims, viewDims + viewDimsNum);
        tensor->strides.resize(viewDimsNum);
        int64_t packed = 1;
        for (size_t axis = viewDimsNum; axis-- > 0;) {
            tensor->strides[axis] = stride != nullptr ? stride[axis] : packed;
            packed *= viewDims[axis];
        }
        if (storageDims != nullptr) {
            tensor->storageDims.assign(storageDims, storageDims + storageDimsNum);
        }
        tensor->offset = offset;
        tensor->dtype = dataType;
        tensor->format = format;
        tensor->data = tensorData;
        return tensor;
    } catch (const std::bad_alloc &) {
        twin::Fail(ACL_ERROR_BAD_ALLOC, "aclCreateTensor: out of memory");
        return nullptr;
    }
}

// Host numbers (sequence offsets); copied, so that the executor's copy is the second and last.
extern "C" aclIntArray *aclCreateIntArray(const int64_t *value, uint64_t size)
{
    if (value == nullptr && size != 0) {
        twin::Fail(ACL_ERROR_INVALID_PARAM, "aclCreateIntArray: value is null");
        return nullptr;
    }
    try {
        return new aclIntArray{{value, value + size}};
    } catch (const std::bad_alloc &) {
        twin::Fail(ACL_ERROR_BAD_ALLOC, "aclCreateIntArray: out of memory");
        return nullptr;
    }
}

// Destroying null is fine, as deleting it is.

extern "C" aclnnStatus aclDestroyTensor(const aclTensor *tensor)
{
    delete tensor;
    return 0;
}

extern "C" aclnnStatus aclDestroyIntArray(const aclIntArray *array)
{
    delete array;
    return 0;
}

// Queries. What a tensor was created with, not what an operator makes of it.

extern "C" aclnnStatus aclGetViewShape(const aclTensor *tensor, int64_t **viewDims,
                                       uint64_t *viewDimsNum)
{
    return CopyOut(tensor, &aclTensor::dims, viewDims, viewDimsNum);
}

extern "C" aclnnStatus aclGetStorageShape(const aclTensor *tensor, int64_t **storageDims,
                                          uint64_t *storageDimsNum)
{
    return CopyOut(tensor, &aclTensor::storageDims, storageDims, storageDimsNum);
}

extern "C" aclnnStatus aclGetViewStrides(const aclTensor *tensor, int64_t **stridesValue,
                                         uint64_t *stridesNum)
{
    return CopyOut(tensor, &aclTensor::strides, stridesValue, stridesNum);
}

extern "C" aclnnStatus aclGetViewOffset(const aclTensor *tensor, int64_t *offset)
{
    return Get(tensor, &aclTensor::offset, offset);
}

extern "C" aclnnStatus aclGetFormat(const aclTensor *tensor, aclFormat *format)
{
    return Get(tensor, &aclTensor::format, format);
}

extern "C" aclnnStatus aclGetDataType(const aclTensor *tensor, aclDataType *dataType)
{
    return Get(tensor, &aclTensor::dtype, dataType);
}

extern "C" aclnnStatus aclGetRawTensorAddr(const aclTensor *tensor, void **addr)
{
    return Get(tensor, &aclTensor::data, addr);
}

extern "C" aclnnStatus aclGetIntArraySize(const aclIntArray *array, uint64_t *size)
{
    if (array == nullptr || size == nullptr) {
        // CANN has no query for the numbers themselves, and neither do we.
        return twin::Fail(161001, "aclGetIntArraySize was given a null pointer");
    }
    *size = array->values.size();
    return 0;
}
