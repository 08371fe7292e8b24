// SPDX-License-Identifier: Apache-2.0
#include "acl_call.h"

#include <cstdlib>
#include <new>
#include <stdexcept>
#include <utility>

namespace fla_bridge
{
namespace
{

constexpr int kFormatNd = 2;  // ACL_FORMAT_ND

// The prototypes of acl/acl.h and aclnn/acl_meta.h, with the handles as plain pointers.
using CreateTensor = void *(*)(const int64_t *dims, uint64_t rank, int dtype,
                               const int64_t *strides, int64_t offset, int format,
                               const int64_t *storageDims, uint64_t storageRank, void *data);
using CreateIntArray = void *(*)(const int64_t *values, uint64_t count);
using Destroy = int (*)(const void *object);
using RecentErrMsg = const char *(*)();
using Phase2 = int (*)(void *workspace, uint64_t bytes, void *executor, void *stream);
using Synchronize = int (*)(void *stream);

template <typename Function>
Function As(void *address)
{
    return reinterpret_cast<Function>(address);
}

}  // namespace

// Delegates first, so that the destructor frees what was made when a later creation throws.
AclCall::AclCall(const Target &target, const std::vector<Value> &values,
                 const std::vector<TensorView> &inputs, const std::vector<TensorView> &outputs)
    : AclCall(target)
{
    texts_.reserve(values.size());  // c_str() of an element must survive the next push_back
    for (const Value &value : values) {
        Slot slot{};
        if (auto *flag = std::get_if<bool>(&value)) {
            slot.flag = *flag;
        } else if (auto *integer = std::get_if<int64_t>(&value)) {
            slot.integer = *integer;
        } else if (auto *real = std::get_if<double>(&value)) {
            slot.real = *real;
        } else if (auto *text = std::get_if<std::string>(&value)) {
            texts_.push_back(*text);
            slot.text = texts_.back().c_str();
        } else if (auto *ints = std::get_if<std::vector<int64_t>>(&value)) {
            slot.pointer = MakeIntArray(*ints);
        } else if (auto *tensor = std::get_if<TensorRef>(&value)) {
            slot.pointer = MakeTensor((tensor->isOutput ? outputs : inputs).at(tensor->index));
        }
        slots_.push_back(slot);
    }
}

AclCall::~AclCall()
{
    if (executor_ != nullptr && target_.acl.destroyExecutor != nullptr) {
        As<Destroy>(target_.acl.destroyExecutor)(executor_);  // phase 2 was never reached
    }
    for (void *tensor : tensors_) {
        As<Destroy>(target_.acl.destroyTensor)(tensor);
    }
    for (void *array : arrays_) {
        As<Destroy>(target_.acl.destroyIntArray)(array);
    }
}

/// A dense tensor: row-major strides, storage shape = view shape. Callers hand in contiguous data.
void *AclCall::MakeTensor(const TensorView &view)
{
    std::vector<int64_t> strides(view.dims.size(), 1);
    for (size_t i = view.dims.size(); i > 1; --i) {
        strides[i - 2] = strides[i - 1] * view.dims[i - 1];
    }
    void *tensor = As<CreateTensor>(target_.acl.createTensor)(
        view.dims.data(), view.dims.size(), view.dtype, strides.data(), 0, kFormatNd,
        view.dims.data(), view.dims.size(), view.data);
    if (tensor == nullptr) {
        throw std::runtime_error(std::string(target_.op->name) +
                                 ": aclCreateTensor gave no tensor");
    }
    tensors_.push_back(tensor);
    return tensor;
}

void *AclCall::MakeIntArray(const std::vector<int64_t> &ints)
{
    void *array = As<CreateIntArray>(target_.acl.createIntArray)(ints.data(), ints.size());
    if (array == nullptr) {
        throw std::runtime_error(std::string(target_.op->name) +
                                 ": aclCreateIntArray gave no array");
    }
    arrays_.push_back(array);
    return array;
}

/// ACL keeps its message per thread, so this runs on the thread of the call that failed.
void AclCall::Fail(const char *suffix, int status) const
{
    const char *text = As<RecentErrMsg>(target_.acl.recentErrMsg)();
    // The Python side takes this line apart again (fla_npu.mindspore.call): keep both in step.
    throw std::runtime_error(std::string(target_.op->name) + ": " + target_.op->aclnn + suffix +
                             " returned " + std::to_string(status) + ": " +
                             (text == nullptr || *text == '\0' ? "no message from ACL" : text));
}

uint64_t AclCall::Prepare()
{
    int status = target_.op->phase1(target_.phase1, slots_.data(), &workspace_, &executor_);
    if (status != 0) {
        Fail("GetWorkspaceSize", status);
    }
    return workspace_;
}

void AclCall::Execute(void *workspace, void *stream)
{
    void *executor = std::exchange(executor_, nullptr);  // phase 2 consumes it, also when it fails
    int status = As<Phase2>(target_.phase2)(workspace, workspace_, executor, stream);
    if (status != 0) {
        Fail("", status);
    }
    // On the host the outputs are read right after this call, so the stream must have drained.
    if (!target_.onDevice && target_.acl.synchronizeStream != nullptr) {
        status = As<Synchronize>(target_.acl.synchronizeStream)(stream);
        if (status != 0) {
            Fail("", status);
        }
    }
}

void Scratch::Free::operator()(void *block) const
{
    std::free(block);
}

/// The block only grows here; what is above kKept goes back right after the call.
void Scratch::Lend(uint64_t bytes, const std::function<void(void *)> &use)
{
    std::lock_guard<std::mutex> hold(lock_);
    if (bytes > size_) {
        block_.reset();  // first: the old and the new block need not live together
        size_ = 0;
        uint64_t size = (bytes + kAlign - 1) / kAlign * kAlign;
        block_.reset(std::aligned_alloc(kAlign, size));
        if (block_ == nullptr) {
            throw std::bad_alloc();
        }
        size_ = size;
    }
    use(bytes == 0 ? nullptr : block_.get());
    if (size_ > kKept) {
        block_.reset();
        size_ = 0;
    }
}

Scratch &HostScratch()
{
    static auto *scratch = new Scratch();
    return *scratch;
}

std::vector<std::unique_ptr<Target>> &Targets()
{
    static auto *targets = new std::vector<std::unique_ptr<Target>>();
    return *targets;
}

}  // namespace fla_bridge
