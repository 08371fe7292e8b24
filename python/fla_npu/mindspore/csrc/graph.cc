// SPDX-License-Identifier: Apache-2.0
// Programs from Python, and the C function through which a graph runs them (ops.Custom, "aot").
#include "graph.h"

#include <pybind11/stl.h>

#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "program.h"

namespace fla_bridge
{
namespace
{

/// (parameter or -1, byte offset, aclDataType, dims, strides)
Region ReadRegion(const py::handle &given)
{
    auto item = py::reinterpret_borrow<py::tuple>(given);
    return {item[0].cast<int64_t>(), item[1].cast<int64_t>(), item[2].cast<int>(),
            item[3].cast<std::vector<int64_t>>(), item[4].cast<std::vector<int64_t>>()};
}

/// (target, values in contract order: a region or None for a tensor)
CallStep ReadCall(const py::tuple &given)
{
    CallStep step;
    step.target = Targets().at(given[1].cast<size_t>()).get();
    auto values = given[2].cast<py::list>();
    const std::string kinds = step.target->op->kinds;
    if (values.size() != kinds.size()) {
        throw std::runtime_error("fla_npu program: " + std::to_string(values.size()) +
                                 " values for the " + std::to_string(kinds.size()) +
                                 " parameters of " + step.target->op->name);
    }
    for (size_t i = 0; i < kinds.size(); ++i) {
        py::object item = values[i];
        if (kinds[i] == 'b') {
            step.values.emplace_back(item.cast<bool>());
        } else if (kinds[i] == 'i') {
            step.values.emplace_back(item.cast<int64_t>());
        } else if (kinds[i] == 'd') {
            step.values.emplace_back(item.cast<double>());
        } else if (kinds[i] == 's') {
            step.values.emplace_back(item.cast<std::string>());
        } else if (item.is_none()) {
            step.values.emplace_back(std::monostate{});
        } else if (kinds[i] == 'n') {
            step.values.emplace_back(item.cast<std::vector<int64_t>>());
        } else {
            auto &regions = kinds[i] == 'o' ? step.outputs : step.inputs;
            step.values.emplace_back(TensorRef{kinds[i] == 'o', regions.size()});
            regions.push_back(ReadRegion(item));
        }
    }
    return step;
}

Step ReadStep(const py::tuple &given)
{
    const std::string kind = given[0].cast<std::string>();
    if (kind == "call") {
        return ReadCall(given);
    }
    if (kind == "copy") {
        return CopyStep{ReadRegion(given[1]), ReadRegion(given[2])};
    }
    if (kind == "zero") {
        return ZeroStep{ReadRegion(given[1])};
    }
    if (kind == "refuse") {
        return RefuseStep{given[1].cast<std::string>()};
    }
    SigmoidStep step{ReadRegion(given[1]), ReadRegion(given[2]), {}, given[3].cast<float>()};
    if (kind == "sigmoid_grad") {
        step.grad.push_back(ReadRegion(given[4]));
    } else if (kind != "sigmoid") {
        throw std::runtime_error("fla_npu program: no step is called " + kind);
    }
    return step;
}

/// record(key, scratch bytes, steps): what Replay does for parameters that match the key
void Record(const std::vector<int64_t> &key, uint64_t scratch, const py::list &steps)
{
    auto program = std::make_shared<Program>();
    program->scratch = scratch;
    for (const py::handle &step : steps) {
        program->steps.push_back(ReadStep(py::reinterpret_borrow<py::tuple>(step)));
    }
    Keep(key, std::move(program));
}

int64_t AclDType(const std::string &name)
{
    static const std::pair<const char *, int64_t> kKnown[] = {
        {"float32", 0}, {"float16", 1}, {"int32", 3}, {"int64", 9}, {"bfloat16", 27}};
    for (const auto &[known, number] : kKnown) {
        if (name == known) {
            return number;
        }
    }
    return -1;
}

}  // namespace

void DefineGraph(py::module_ *module)
{
    module->def("record", &Record);
}

}  // namespace fla_bridge

/// The function that ops.Custom calls. The first parameter holds the number of the recording; what
/// is thrown reaches Python as a RuntimeError with its text.
extern "C" __attribute__((visibility("default"))) int FlaNpuReplay(int count, void **params,
                                                                   int *ranks, int64_t **shapes,
                                                                   const char **dtypes,
                                                                   void * /*stream*/,
                                                                   void * /*extra*/)
{
    std::vector<int64_t> key{*static_cast<const int64_t *>(params[0])};
    for (int i = 0; i < count; ++i) {
        key.push_back(ranks[i]);
        key.insert(key.end(), shapes[i], shapes[i] + ranks[i]);
        key.push_back(fla_bridge::AclDType(dtypes[i]));
    }
    std::shared_ptr<const fla_bridge::Program> program = fla_bridge::Find(key);
    if (program == nullptr) {
        throw std::runtime_error(
            "fla_npu: this graph was compiled by another process, or for other shapes; compile it "
            "again here, without MindSpore's compile cache");
    }
    try {
        fla_bridge::Run(*program, params);
    } catch (...) {
        // When a kernel fails MindSpore frees the graph's buffers, also under those kernels that run
        // on its other threads at this moment: they get the time to end.
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        throw;
    }
    return 0;
}
