// SPDX-License-Identifier: Apache-2.0
// MindSpore side of the bridge: tensors in, an ordered launch, tensors out. It knows no operator;
// the generated table (calls.cc) and the values that Python hands in say what is called.
//
// Two things here are not what a stock PyboostRunner does, and both decide whether numbers are
// right:
//  * inputs are made contiguous by us, the runner does not do it;
//  * on CPU the kernel runs inside the device stage. A stock runner defers it by one more stage,
//  where
//    nothing orders it against the built-in operators that follow.
#include "acl_call.h"

#include <array>
#include <stdexcept>
#include <utility>

#include "custom_op_api.h"
#include "graph.h"

namespace fla_bridge
{
namespace
{

using mindspore::TypeId;

struct DType {
    const char *name;  // as the contract spells it
    TypeId mindspore;
    int acl;  // aclDataType
};

constexpr std::array<DType, 5> kDTypes{{{"float32", TypeId::kNumberTypeFloat32, 0},
                                        {"float16", TypeId::kNumberTypeFloat16, 1},
                                        {"int32", TypeId::kNumberTypeInt32, 3},
                                        {"int64", TypeId::kNumberTypeInt64, 9},
                                        {"bfloat16", TypeId::kNumberTypeBFloat16, 27}}};

template <typename Match>
const DType &FindDType(Match match, const std::string &what)
{
    for (const DType &dtype : kDTypes) {
        if (match(dtype)) {
            return dtype;
        }
    }
    throw std::runtime_error("fla_npu bridge: no ACL dtype for " + what);
}

/// Everything about one call but the tensors themselves. Built on the caller's thread, read on
/// others.
struct Plan {
    const Target *target;
    std::vector<Value> values;               // in contract order
    std::vector<std::vector<int64_t>> dims;  // per input: dimensions to present, empty = its own
    std::vector<std::pair<TypeId, ShapeVector>> outputs;
};
using PlanPtr = std::shared_ptr<const Plan>;

class Runner : public ms::pynative::PyboostRunner
{
  public:
    explicit Runner(PlanPtr plan) : PyboostRunner(plan->target->op->name), plan_(std::move(plan)) {}

    /// On a device phase 1 runs here, so that MindSpore's allocator provides the workspace.
    size_t CalcWorkspace() override
    {
        if (!plan_->target->onDevice) {
            return 0;  // MindSpore would release it before the kernel runs; the bridge owns scratch
        }
        Begin();
        return call_->Prepare();
    }

    void LaunchKernel() override
    {
        if (plan_->target->onDevice) {
            call_->Execute(workspace_ptr(), stream());
        } else {
            Begin();
            uint64_t bytes = call_->Prepare();
            HostScratch().Lend(bytes,
                               [this](void *workspace) { call_->Execute(workspace, nullptr); });
        }
        call_.reset();
    }

  protected:
    /// A stream orders device work. On CPU there is none: run now, in the stage of the built-in
    /// kernels.
    void _DispatchLaunchTask() override
    {
        if (plan_->target->onDevice) {
            PyboostRunner::_DispatchLaunchTask();
        } else {
            LaunchKernel();
        }
    }

  private:
    void Begin()
    {
        std::vector<TensorView> in, out;
        for (size_t i = 0; i < inputs().size(); ++i) {
            in.push_back(View(inputs()[i]));
            if (!plan_->dims[i].empty()) {
                in.back().dims = plan_->dims[i];
            }
        }
        for (const ms::Tensor &output : outputs()) {
            out.push_back(View(output));
        }
        call_ = std::make_unique<AclCall>(*plan_->target, plan_->values, in, out);
    }

    static TensorView View(const ms::Tensor &tensor)
    {
        TypeId type = tensor.data_type();
        const DType &dtype = FindDType([type](const DType &d) { return d.mindspore == type; },
                                       "type id " + std::to_string(type));
        return {tensor.GetDataPtr(), dtype.acl, tensor.shape()};
    }

    PlanPtr plan_;
    std::unique_ptr<AclCall> call_;
};

/// MindSpore wants the number of outputs at compile time, and each number costs seconds of compiling:
/// there is one instance per power of two, and what is too much is padded with empty tensors.
constexpr size_t kMostOutputs = 32;
static_assert(FLA_BRIDGE_MAX_OUTPUTS <= kMostOutputs, "an operator has more outputs: double it");

size_t Padded(size_t count)
{
    size_t padded = 1;
    while (padded < count) {
        padded *= 2;
    }
    return padded;
}

/// The body of the operator, on MindSpore's frontend thread: allocate outputs, queue the launch.
std::vector<ms::Tensor> Issue(const PlanPtr &plan, const std::vector<ms::Tensor> &given)
{
    std::vector<ms::Tensor> inputs, outputs;
    for (const ms::Tensor &tensor : given) {
        inputs.push_back(tensor.is_contiguous() ? tensor : tensor.contiguous());
    }
    for (const auto &[type, shape] : plan->outputs) {
        outputs.emplace_back(type, shape);
    }
    std::make_shared<Runner>(plan)->Run(inputs, outputs);
    while (outputs.size() < Padded(plan->outputs.size())) {
        outputs.emplace_back(TypeId::kNumberTypeFloat32, ShapeVector{0});
    }
    return outputs;
}

ms::Tensor IssueOne(const PlanPtr &plan, const std::vector<ms::Tensor> &given)
{
    return Issue(plan, given)[0];
}

/// From MindSpore 2.10 on a call has a name, which its profiler shows.
template <size_t Count, typename Function>
py::object Queue(Function issue, const PlanPtr &plan, const std::vector<ms::Tensor> &inputs)
{
    using ms::pynative::PyboostRunner;
    if constexpr (FLA_BRIDGE_NAMED_CALLS) {
        const std::string name = plan->target->op->name;
        return PyboostRunner::Call<Count>(name, issue, plan, inputs);
    } else {
        return PyboostRunner::Call<Count>(issue, plan, inputs);
    }
}

template <size_t Count>
py::tuple CallPadded(const PlanPtr &plan, const std::vector<ms::Tensor> &inputs)
{
    if constexpr (Count == 1) {
        return py::make_tuple(Queue<1>(&IssueOne, plan, inputs));
    } else {
        return Queue<Count>(&Issue, plan, inputs);
    }
}

/// The outputs of `plan`, and padding behind them.
template <size_t Count = 1>
py::tuple CallAny(const PlanPtr &plan, const std::vector<ms::Tensor> &inputs)
{
    if constexpr (Count <= kMostOutputs) {
        if (!plan->outputs.empty() && Padded(plan->outputs.size()) == Count) {
            return CallPadded<Count>(plan, inputs);
        }
        return CallAny<2 * Count>(plan, inputs);
    }
    throw std::runtime_error("fla_npu bridge: cannot return " +
                             std::to_string(plan->outputs.size()) + " tensors");
}

/// Reads one input parameter by its kind letter; tensors are appended to `inputs`.
Value ReadValue(char kind, const py::handle &item, Plan *plan, std::vector<ms::Tensor> *inputs)
{
    switch (kind) {
        case 'b':
            return item.cast<bool>();
        case 'i':
            return item.cast<int64_t>();
        case 'd':
            return item.cast<double>();
        case 's':
            return item.cast<std::string>();
        default:
            break;
    }
    if (item.is_none()) {
        return std::monostate{};
    }
    if (kind == 'n') {
        return item.cast<std::vector<int64_t>>();
    }
    // A tensor, or a tensor with the dimensions it is to be presented with: (tensor, dims).
    bool reshaped = py::isinstance<py::tuple>(item);
    py::object tensor =
        reshaped ? py::object(item[py::int_(0)]) : py::reinterpret_borrow<py::object>(item);
    inputs->push_back(tensor.cast<ms::Tensor>());
    plan->dims.push_back(reshaped ? item[py::int_(1)].cast<std::vector<int64_t>>()
                                  : std::vector<int64_t>{});
    return TensorRef{false, inputs->size() - 1};
}

/// bind(name, phase1, phase2, (acl addresses in AclApi order), on_device) -> number of the target
size_t Bind(const std::string &name, uintptr_t phase1, uintptr_t phase2,
            const std::array<uintptr_t, 7> &acl, bool onDevice)
{
    for (size_t i = 0; i < kOpCount; ++i) {
        if (name != kOps[i].name) {
            continue;
        }
        auto at = [](uintptr_t address) { return reinterpret_cast<void *>(address); };
        auto target = std::make_unique<Target>();
        target->op = &kOps[i];
        target->phase1 = at(phase1);
        target->phase2 = at(phase2);
        target->acl = {at(acl[0]), at(acl[1]), at(acl[2]), at(acl[3]),
                       at(acl[4]), at(acl[5]), at(acl[6])};
        target->onDevice = onDevice;
        Targets().push_back(std::move(target));
        return Targets().size() - 1;
    }
    throw py::key_error("the bridge was built without operator " + name);
}

/// call(target, inputs in contract order, outputs in contract order: (dtype, shape) or None)
/// -> tuple with one entry per output slot, None where None was asked for
py::tuple Call(size_t number, const py::list &given, const py::list &slots)
{
    auto plan = std::make_shared<Plan>();
    plan->target = Targets().at(number).get();
    std::vector<ms::Tensor> inputs;
    size_t nextIn = 0, nextOut = 0;
    for (const char *kind = plan->target->op->kinds; *kind != '\0'; ++kind) {
        if (*kind != 'o') {
            plan->values.push_back(ReadValue(*kind, given[nextIn++], plan.get(), &inputs));
            continue;
        }
        py::object slot = slots[nextOut++];
        if (slot.is_none()) {
            plan->values.push_back(std::monostate{});
            continue;
        }
        std::string name = slot[py::int_(0)].cast<std::string>();
        const DType &dtype = FindDType([&name](const DType &d) { return name == d.name; }, name);
        plan->values.push_back(TensorRef{true, plan->outputs.size()});
        plan->outputs.emplace_back(dtype.mindspore, slot[py::int_(1)].cast<ShapeVector>());
    }
    py::tuple made = CallAny(plan, inputs);
    py::tuple result(slots.size());
    for (size_t i = 0, next = 0; i < slots.size(); ++i) {
        result[i] = slots[i].is_none() ? py::object(py::none()) : py::object(made[next++]);
    }
    return result;
}

/// The operators this build knows, with the parameter letters: what the Python side checks against.
py::dict Operators()
{
    py::dict known;
    for (size_t i = 0; i < kOpCount; ++i) {
        known[kOps[i].name] = py::make_tuple(kOps[i].aclnn, kOps[i].kinds);
    }
    return known;
}

}  // namespace
}  // namespace fla_bridge

PYBIND11_MODULE(MS_EXTENSION_NAME, m)
{
    m.def("bind", &fla_bridge::Bind);
    m.def("call", &fla_bridge::Call);
    m.def("operators", &fla_bridge::Operators);
    fla_bridge::DefineGraph(&m);
}
