// SPDX-License-Identifier: Apache-2.0
// The steps of a program, one after another. Copies work row by row along the last axis; they are a
// small part of the time beside the operators.
#include "program.h"

#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>

namespace fla_bridge
{
namespace
{

constexpr int kFloat32 = 0, kInt32 = 3, kInt64 = 9, kBFloat16 = 27;  // aclDataType

/// bfloat16 is the upper half of a float32.
struct BFloat16 {
    uint16_t bits;
};

inline float Widen(float value)
{
    return value;
}

inline float Widen(BFloat16 value)
{
    uint32_t bits = static_cast<uint32_t>(value.bits) << 16;
    float wide;
    std::memcpy(&wide, &bits, sizeof wide);
    return wide;
}

inline void Store(float value, float *to)
{
    *to = value;
}

/// To the nearest, ties to even; a NaN stays one.
inline void Store(float value, BFloat16 *to)
{
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    bool nan = (bits & 0x7fffffffU) > 0x7f800000U;
    to->bits = static_cast<uint16_t>(nan ? (bits >> 16 | 0x40U)
                                         : (bits + 0x7fffU + (bits >> 16 & 1U)) >> 16);
}

/// Rounds once where the target is narrower.
template <typename From, typename To>
void ConvertRow(const void *from, int64_t fromStride, void *to, int64_t toStride, int64_t count)
{
    auto *source = static_cast<const From *>(from);
    auto *target = static_cast<To *>(to);
    for (int64_t i = 0; i < count; ++i) {
        Store(Widen(source[i * fromStride]), target + i * toStride);
    }
}

/// Bit for bit, so that a NaN keeps its payload.
template <typename Bits>
void MoveRow(const void *from, int64_t fromStride, void *to, int64_t toStride, int64_t count)
{
    auto *source = static_cast<const Bits *>(from);
    auto *target = static_cast<Bits *>(to);
    if (fromStride == 1 && toStride == 1) {
        std::memcpy(target, source, static_cast<size_t>(count) * sizeof(Bits));
        return;
    }
    for (int64_t i = 0; i < count; ++i) {
        target[i * toStride] = source[i * fromStride];
    }
}

/// Copies `count` elements; strides in elements.
using Row = void (*)(const void *, int64_t, void *, int64_t, int64_t);

int64_t ItemSize(int dtype)
{
    switch (dtype) {
        case kBFloat16:
            return 2;
        case kFloat32:
        case kInt32:
            return 4;
        case kInt64:
            return 8;
        default:
            throw std::runtime_error("fla_npu program: no copies of aclDataType " +
                                     std::to_string(dtype));
    }
}

/// The way to copy between two dtypes.
Row RowFor(int from, int to)
{
    if (from == to) {
        int64_t size = ItemSize(from);
        return size == 2 ? MoveRow<uint16_t> : size == 4 ? MoveRow<uint32_t> : MoveRow<uint64_t>;
    }
    if (from == kFloat32 && to == kBFloat16) {
        return ConvertRow<float, BFloat16>;
    }
    if (from == kBFloat16 && to == kFloat32) {
        return ConvertRow<BFloat16, float>;
    }
    throw std::runtime_error("fla_npu program: no conversion from aclDataType " +
                             std::to_string(from) + " to " + std::to_string(to));
}

/// Elements, dense or not.
int64_t Count(const Region &region)
{
    int64_t count = 1;
    for (int64_t dim : region.dims) {
        count *= dim;
    }
    return count;
}

/// One run of a program: the addresses behind its regions. What a step means is in program.h.
class Replay
{
  public:
    Replay(void **params, void *scratch) : params_(params), scratch_(static_cast<char *>(scratch))
    {
    }

    /// Both phases at once: the twin works on the host, and nothing is queued.
    void operator()(const CallStep &step) const
    {
        AclCall call(*step.target, step.values, Views(step.inputs), Views(step.outputs));
        uint64_t bytes = call.Prepare();
        HostScratch().Lend(bytes, [&call](void *workspace) { call.Execute(workspace, nullptr); });
    }

    void operator()(const CopyStep &step) const
    {
        Row row = RowFor(step.from.dtype, step.to.dtype);
        int64_t fromSize = ItemSize(step.from.dtype), toSize = ItemSize(step.to.dtype);
        size_t rank = step.to.dims.size();
        if (Count(step.to) == 0) {
            return;
        }
        if (rank == 0) {
            row(At(step.from), 1, At(step.to), 1, 1);
            return;
        }
        // Rows along the last axis; `index` counts through the axes before it.
        std::vector<int64_t> index(rank, 0);
        int64_t fromAt = 0, toAt = 0;
        while (true) {
            row(At(step.from) + fromAt * fromSize, step.from.strides.back(),
                At(step.to) + toAt * toSize, step.to.strides.back(), step.to.dims.back());
            size_t axis = rank - 1;
            while (axis-- > 0) {
                fromAt += step.from.strides[axis];
                toAt += step.to.strides[axis];
                if (++index[axis] < step.to.dims[axis]) {
                    break;
                }
                fromAt -= step.from.strides[axis] * index[axis];
                toAt -= step.to.strides[axis] * index[axis];
                index[axis] = 0;
            }
            if (axis == static_cast<size_t>(-1)) {
                return;
            }
        }
    }

    void operator()(const ZeroStep &step) const
    {
        std::memset(At(step.to), 0, static_cast<size_t>(Count(step.to) * ItemSize(step.to.dtype)));
    }

    /// s(-x) instead of 1 - s(x), which is 0 from x = 17 on.
    void operator()(const SigmoidStep &step) const
    {
        auto *logit = reinterpret_cast<const float *>(At(step.logit));
        auto *to = reinterpret_cast<float *>(At(step.to));
        auto *grad =
            step.grad.empty() ? nullptr : reinterpret_cast<const float *>(At(step.grad.front()));
        for (int64_t i = 0, count = Count(step.to); i < count; ++i) {
            float rising = 1.0F / (1.0F + std::exp(-logit[i]));
            float falling = 1.0F / (1.0F + std::exp(logit[i]));
            to[i] =
                grad == nullptr ? rising * step.factor : grad[i] * step.factor * rising * falling;
        }
    }

    void operator()(const RefuseStep &step) const { throw std::runtime_error(step.text); }

  private:
    char *At(const Region &region) const
    {
        char *base = region.param < 0 ? scratch_ : static_cast<char *>(params_[region.param]);
        return base + region.offset;
    }

    /// Recorded calls have dense tensors only, so dimensions say all.
    std::vector<TensorView> Views(const std::vector<Region> &regions) const
    {
        std::vector<TensorView> views;
        for (const Region &region : regions) {
            views.push_back({At(region), region.dtype, region.dims});
        }
        return views;
    }

    void **params_;
    char *scratch_;
};

/// Not the one of the operators: a program holds its memory while they borrow theirs.
Scratch &ProgramScratch()
{
    static auto *scratch = new Scratch();
    return *scratch;
}

/// All programs of the process. A compiled graph may run as long as that.
struct Library {
    std::mutex lock;
    std::map<std::vector<int64_t>, std::shared_ptr<const Program>> programs;
};

Library &Kept()
{
    static auto *library = new Library();
    return *library;
}

}  // namespace

void Run(const Program &program, void **params)
{
    ProgramScratch().Lend(program.scratch, [&program, params](void *scratch) {
        Replay replay(params, scratch);
        for (const Step &step : program.steps) {
            std::visit(replay, step);
        }
    });
}

void Keep(const std::vector<int64_t> &key, std::shared_ptr<const Program> program)
{
    Library &library = Kept();
    std::lock_guard<std::mutex> hold(library.lock);
    library.programs[key] = std::move(program);
}

std::shared_ptr<const Program> Find(const std::vector<int64_t> &key)
{
    Library &library = Kept();
    std::lock_guard<std::mutex> hold(library.lock);
    auto found = library.programs.find(key);
    return found == library.programs.end() ? nullptr : found->second;
}

}  // namespace fla_bridge
