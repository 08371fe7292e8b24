// SPDX-License-Identifier: Apache-2.0
// One two-phase aclnn call, framework-neutral. Nothing here links against the OPP or against CANN:
// every function is an address that the Python loader looked up and handed in.
#ifndef FLA_NPU_BRIDGE_ACL_CALL_H
#define FLA_NPU_BRIDGE_ACL_CALL_H

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <variant>
#include <vector>

namespace fla_bridge
{

/// One C argument of phase 1. Which member counts follows from the kind letter of its parameter.
union Slot {
    const void *pointer;  // kinds t, o (aclTensor) and n (aclIntArray); null when left out
    const char *text;     // kind s
    bool flag;            // kind b
    int64_t integer;      // kind i
    double real;          // kind d
};

/// One row of the generated table: how the phase 1 function of an operator is called.
struct OpSignature {
    const char *name;   // operator name of the contract
    const char *aclnn;  // C name of phase 2; phase 1 is this plus GetWorkspaceSize
    const char *kinds;  // one letter per parameter, in the frozen order
    int (*phase1)(void *function, const Slot *slots, uint64_t *workspace, void **executor);
};

extern const OpSignature kOps[];  // in the generated calls.cc
extern const size_t kOpCount;

/// Addresses of the ACL C functions that a call needs, from the same OPP as the operator.
struct AclApi {
    void *createTensor = nullptr;
    void *destroyTensor = nullptr;
    void *createIntArray = nullptr;
    void *destroyIntArray = nullptr;
    void *recentErrMsg = nullptr;
    void *destroyExecutor = nullptr;    // may be null: an unused executor then stays allocated
    void *synchronizeStream = nullptr;  // may be null: phase 2 then returns when the work is done
};

/// One operator of one OPP, resolved: the table row and the addresses.
struct Target {
    const OpSignature *op = nullptr;
    void *phase1 = nullptr;
    void *phase2 = nullptr;
    AclApi acl;
    bool onDevice = false;  // true: device memory, the runner's stream and MindSpore's workspace
};

/// A dense buffer: aclDataType number, dimensions, first element.
struct TensorView {
    void *data = nullptr;
    int dtype = 0;
    std::vector<int64_t> dims;
};

/// Position of a tensor among the inputs or the outputs of a call.
struct TensorRef {
    bool isOutput;
    size_t index;
};

/// One parameter as the caller gave it; monostate is a null tensor or a null int array.
using Value = std::variant<std::monostate, bool, int64_t, double, std::string, std::vector<int64_t>,
                           TensorRef>;

/// Owns the ACL objects of one call between its two phases. Not shared between threads.
class AclCall
{
  public:
    /// `values` has one entry per parameter; the views are what the TensorRefs point at.
    AclCall(const Target &target, const std::vector<Value> &values,
            const std::vector<TensorView> &inputs, const std::vector<TensorView> &outputs);
    ~AclCall();
    AclCall(const AclCall &) = delete;
    AclCall &operator=(const AclCall &) = delete;

    /// Phase 1. Returns the workspace bytes; throws std::runtime_error with the ACL text.
    uint64_t Prepare();
    /// Phase 2 on `stream`; `workspace` has the bytes that Prepare returned.
    void Execute(void *workspace, void *stream);

  private:
    explicit AclCall(const Target &target) : target_(target) {}
    void *MakeTensor(const TensorView &view);
    void *MakeIntArray(const std::vector<int64_t> &ints);
    [[noreturn]] void Fail(const char *suffix, int status) const;

    const Target &target_;
    std::vector<std::string> texts_;  // keeps the strings of the slots alive
    std::vector<Slot> slots_;
    std::vector<void *> tensors_;
    std::vector<void *> arrays_;
    uint64_t workspace_ = 0;
    void *executor_ = nullptr;
};

/// Memory on the host: one block, grown on demand, lent to one user at a time. A block
/// above kKept goes back to the system after that, so that one big call does not pin memory for ever.
class Scratch
{
  public:
    static constexpr uint64_t kKept = 256ULL << 20;
    static constexpr size_t kAlign = 512;

    /// Runs `use` on a block of `bytes` (null for 0); the lock makes several threads take turns.
    void Lend(uint64_t bytes, const std::function<void(void *)> &use);

  private:
    struct Free {
        void operator()(void *block) const;
    };
    std::mutex lock_;
    std::unique_ptr<void, Free> block_;
    uint64_t size_ = 0;
};

/// The workspaces of all operators on the host.
Scratch &HostScratch();

/// Targets live as long as the process: a queued call or a program may still point at one.
std::vector<std::unique_ptr<Target>> &Targets();

}  // namespace fla_bridge
#endif  // FLA_NPU_BRIDGE_ACL_CALL_H
