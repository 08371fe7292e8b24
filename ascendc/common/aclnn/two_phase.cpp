// SPDX-License-Identifier: Apache-2.0
#include "two_phase.h"

#include <algorithm>
#include <cstdio>

#include "acl/objects.h"
#include "build_id.h"
#include "machine/launch.h"
#include "opp_files.h"

namespace twin
{
extern "C" ACL_FUNC_VISIBILITY const char *fla_twin_build_id(void);
}

namespace fla
{
namespace
{

constexpr int kInnerNull = 561103, kInner = 561000;
constexpr uint64_t kAlignment = 512;

/// A planned call. Owns copies of everything phase 1 was given except the tensors' data.
class Executor final : public aclOpExecutor
{
  public:
    struct StridedInput {
        aclTensor view;
        size_t arg;
        uint64_t at;  // offset of its contiguous copy in the workspace
    };

    aclnnStatus Run(void *workspace, uint64_t workspaceSize, aclrtStream stream) override;

    std::string op;
    twin::Launch launch;       // gm in kernel argument order, workspace and tiling last
    std::vector<void *> args;  // the same addresses
    std::vector<std::vector<int64_t>> intArrays;
    std::vector<StridedInput> copies;
    std::vector<uint8_t> tiling;
    uint64_t userBytes = 0, neededBytes = 0;
};

aclnnStatus Executor::Run(void *workspace, uint64_t workspaceSize, aclrtStream)
{
    if (launch.blockDim == 0) {
        return 0;
    }
    if (workspace == nullptr) {
        return twin::Fail(kNullPointer, op + ": workspace is null; phase 1 asked for " +
                                            std::to_string(neededBytes) + " bytes");
    }
    if (workspaceSize < neededBytes) {
        return twin::Fail(kInvalid, op + ": workspace has " + std::to_string(workspaceSize) +
                                        " bytes; phase 1 asked for " + std::to_string(neededBytes));
    }
    char *base = static_cast<char *>(workspace);
    for (const StridedInput &copy : copies) {
        twin::CopyContiguous(copy.view, base + copy.at);
        launch.gm[copy.arg].base = args[copy.arg] = base + copy.at;
    }
    const size_t slot = args.size() - 2;
    args[slot] = launch.gm[slot].base = workspace;
    launch.args = args.data();
    const twin::Result result = twin::Run(launch);
    return result.status == 0 ? 0 : twin::Fail(result.status, result.message);
}

struct Range {
    const CallBuilder::Port *port;
    bool written;
    const char *begin, *end;
};

bool IsMutated(const OpEntry &entry, const CallBuilder::Port &port)
{
    const auto &names = entry.mutated;
    return std::find(names.begin(), names.end(), port.name) != names.end();
}

Range RangeOf(const OpEntry &entry, const CallBuilder::Port &port)
{
    const auto extent = port.tensor->Extent();
    return {&port, port.output || IsMutated(entry, port), port.tensor->Begin() + extent.first,
            port.tensor->Begin() + extent.second};
}

/// Kernels read inputs while they write outputs, in an order of their own: shared memory is
/// refused.
Refusal CheckMemory(const OpEntry &entry, const CallBuilder &builder)
{
    const std::string &op = entry.contract->Op();
    std::vector<Range> ranges;
    for (const CallBuilder::Port &port : builder.ports) {
        if (port.tensor == nullptr) {
            continue;
        }
        if (port.tensor->data == nullptr) {
            return {kNullPointer, op + ": " + port.name + " has no data (its address is null)"};
        }
        ranges.push_back(RangeOf(entry, port));
    }
    for (const Range &out : ranges) {
        if (!out.written) {
            continue;
        }
        for (const Range &other : ranges) {
            const bool skip = other.port == out.port || (other.written && other.port < out.port);
            if (!skip && out.begin < other.end && other.begin < out.end) {
                return {kInvalid, op + (out.port->output ? ": output " : ": ") + out.port->name +
                                      (out.port->output ? "" : ", which is written,") +
                                      " shares memory with " +
                                      (other.port->output ? "output " : "input ") +
                                      other.port->name + "; outputs need memory of their own"};
            }
        }
    }
    return {};
}

/// Fills the kernel's arguments: ports, then workspace and tiling.
void BindArguments(const OpEntry &entry, const CallBuilder &builder, Executor &executor)
{
    using Kind = twin::GmRange::Kind;
    const auto add = [&executor](void *base, uint64_t bytes, Kind kind, const char *name) {
        executor.args.push_back(base);
        executor.launch.gm.push_back({base, bytes, kind, name});
    };
    uint64_t end = AlignUp(executor.userBytes, kAlignment);
    for (const bool outputs : {false, true}) {
        for (const CallBuilder::Port &port : builder.ports) {
            if (port.output != outputs) {
                continue;
            }
            const char *name = port.name;
            const auto *ints = builder.call.Ints(port.name);
            if (ints != nullptr) {
                executor.intArrays.push_back(*ints);
                add(executor.intArrays.back().data(), ints->size() * sizeof(int64_t), Kind::kInput,
                    name);
            } else if (port.tensor == nullptr) {
                add(nullptr, 0, outputs ? Kind::kOutput : Kind::kInput, name);
            } else {
                const uint64_t bytes = port.tensor->Count() * port.tensor->ItemSize();
                if (!outputs && !port.tensor->Contiguous()) {
                    executor.copies.push_back({*port.tensor, executor.args.size(), end});
                    end = AlignUp(end + bytes, kAlignment);
                }
                const Kind kind = outputs                  ? Kind::kOutput
                                  : IsMutated(entry, port) ? Kind::kInOut
                                                           : Kind::kInput;
                add(port.tensor->Begin(), bytes, kind, name);
            }
        }
    }
    for (const CallBuilder::Port &port : builder.ports) {  // once more, as outputs
        if (IsMutated(entry, port) && port.tensor != nullptr) {
            add(port.tensor->Begin(), port.tensor->Count() * port.tensor->ItemSize(), Kind::kInOut,
                port.name);
        }
    }
    add(nullptr, executor.userBytes, Kind::kWorkspace, "workspace");
    add(executor.tiling.data(), executor.tiling.size(), Kind::kTiling, "tiling");
    // The system part stands last: kernels get the caller's pointer, and nobody touches these
    // bytes.
    executor.neededBytes = end + kSystemWorkspace;
}

}  // namespace

CallBuilder &CallBuilder::Tensor(const char *name, const aclTensor *tensor, bool output)
{
    if (tensor != nullptr) {
        TensorArg &arg = call.tensors[name];
        arg.dtype = static_cast<DType>(tensor->dtype);
        arg.dims = tensor->dims;
        arg.contiguous = tensor->Contiguous();
    }
    ports.push_back({name, tensor, output});
    return *this;
}

CallBuilder &CallBuilder::Ints(const char *name, const aclIntArray *values)
{
    if (values != nullptr) {
        call.intArrays[name] = values->values;
    }
    ports.push_back({name, nullptr, false});
    return *this;
}

CallBuilder &CallBuilder::Attr(const char *name, bool value)
{
    call.ints[name] = value ? 1 : 0;
    return *this;
}

CallBuilder &CallBuilder::Attr(const char *name, int64_t value)
{
    call.ints[name] = value;
    return *this;
}

CallBuilder &CallBuilder::Attr(const char *name, double value)
{
    call.reals[name] = value;
    return *this;
}

CallBuilder &CallBuilder::Attr(const char *name, const char *value)
{
    if (value != nullptr) {
        call.texts[name] = value;
    }
    return *this;
}

aclnnStatus PlanCall(const OpEntry &entry, CallBuilder &builder, uint64_t *workspaceSize,
                     aclOpExecutor **executor)
{
    const std::string &op = entry.contract->Op();
    if (workspaceSize == nullptr || executor == nullptr) {
        return twin::Fail(kNullPointer, op + ": workspaceSize and executor must not be null");
    }
    if (std::string(twin::fla_twin_build_id()) != fla_build_id) {
        const std::string text = op + ": libcust_opapi.so is of build " + fla_build_id +
                                 ", but the libfla_twin.so in this process is of build " +
                                 twin::fla_twin_build_id() + "; use one OPP in a process";
        // Also printed: the caller may ask its own twin library for the text, and this is another
        // one.
        std::fprintf(stderr, "fla-npu: %s\n", text.c_str());
        return twin::Fail(kInner, text);
    }
    Refusal refusal = entry.contract->Check(builder.call);
    if (!refusal.Refuses()) {
        refusal = CheckMemory(entry, builder);
    }
    if (refusal.Refuses()) {
        return twin::Fail(refusal.status, refusal.text);
    }
    const OpLibraries libraries = OpenOp(op, entry.opType);
    if (libraries.status != 0) {
        return twin::Fail(libraries.status, libraries.fault);
    }
    const uint32_t cores = twin::CubeCores();
    Plan plan;
    libraries.plan(builder.call, {cores, 2 * cores, kSystemWorkspace}, plan);
    if (plan.status != kOk) {
        return twin::Fail(plan.status, plan.refusal);
    }
    auto made = std::make_unique<Executor>();
    made->op = op;
    made->tiling = std::move(plan.tiling);
    made->userBytes = plan.workspaceBytes;
    made->launch.kernel = libraries.kernel;
    made->launch.blockDim = plan.blockDim;
    BindArguments(entry, builder, *made);
    *workspaceSize = made->neededBytes;
    *executor = twin::Publish(made.release());
    return 0;
}

aclnnStatus PhaseTwo(aclOpExecutor *executor, void *workspace, uint64_t workspaceSize,
                     aclrtStream stream)
{
    try {
        return twin::RunPublished(executor, workspace, workspaceSize, stream);
    } catch (const std::exception &error) {
        return twin::Fail(kInner, std::string("phase 2 failed: ") + error.what());
    }
}

aclnnStatus OutOfMemory(const std::string &op)
{
    return twin::Fail(kInnerNull, op + ": out of memory in phase 1");
}

}  // namespace fla
