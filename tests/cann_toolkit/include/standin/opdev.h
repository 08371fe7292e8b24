// SPDX-License-Identifier: Apache-2.0
// Stand-in for opdev: what the generated L0 and L2 sources use. Executors hold nothing.
#ifndef STANDIN_OPDEV_H
#define STANDIN_OPDEV_H

#include <cstdio>
#include <initializer_list>
#include <memory>
#include <tuple>

#include "aclnn/acl_meta.h"
#include "standin/host.h"

constexpr aclnnStatus ACLNN_SUCCESS = 0, ACLNN_ERR_INNER_CREATE_EXECUTOR = 561101,
                      ACLNN_ERR_INNER_NULLPTR = 561103;

namespace op
{

using DataType = ge::DataType;

class Shape
{
  public:
    Shape() = default;
    Shape(std::initializer_list<int64_t> dims) : dims_(dims) {}
    size_t GetDimNum() const { return dims_.size(); }
    int64_t GetDim(size_t i) const { return dims_[i]; }

  private:
    std::vector<int64_t> dims_;
};

struct PlatformInfo {
    uint32_t GetCubeCoreNum() const { return 20; }
    uint32_t GetVectorCoreNum() const { return 40; }
};
inline const PlatformInfo &GetCurrentPlatformInfo()
{
    static const PlatformInfo info;
    return info;
}

}  // namespace op

struct aclTensor {
    op::DataType GetDataType() const { return type; }
    const op::Shape &GetViewShape() const { return shape; }
    op::DataType type = ge::DT_FLOAT;
    op::Shape shape;
};
struct aclIntArray {
    const int64_t *GetData() const { return data.data(); }
    uint64_t Size() const { return data.size(); }
    std::vector<int64_t> data;
};
struct aclOpExecutor {
    uint64_t GetWorkspaceSize() const { return 0; }
    const aclTensor *ConvertToTensor(const int64_t *, uint64_t, op::DataType) { return nullptr; }
    aclTensor *AllocTensor(const op::Shape &, op::DataType) { return nullptr; }
};
struct UniqueExecutor : std::unique_ptr<aclOpExecutor> {
    UniqueExecutor() : std::unique_ptr<aclOpExecutor>(new aclOpExecutor) {}
    void ReleaseTo(aclOpExecutor **to) { *to = release(); }
};

namespace op
{
inline bool IsContiguous(const aclTensor *)
{
    return true;
}
}  // namespace op

namespace l0op
{
inline const aclTensor *Contiguous(const aclTensor *tensor, aclOpExecutor *)
{
    return tensor;
}
template <typename... Ports>
aclnnStatus Launch(const char *, const Ports &...)
{
    return ACLNN_SUCCESS;
}
}  // namespace l0op

inline aclnnStatus CommonOpExecutorRun(void *, uint64_t, aclOpExecutor *, aclrtStream)
{
    return ACLNN_SUCCESS;
}

template <typename... Values>
void StandinUses(const Values &...)
{
}
#define CREATE_EXECUTOR() UniqueExecutor()
#define CHECK_RET(condition, status) \
    do {                             \
        if (!(condition)) {          \
            return status;           \
        }                            \
    } while (0)
#define DFX_IN(...) __VA_ARGS__
#define DFX_OUT(...) __VA_ARGS__
#define L2_DFX_PHASE_1(name, in, out) StandinUses(in, out)
#define L2_DFX_PHASE_2(name) StandinUses(#name)
#define L0_DFX(name, ...) StandinUses(__VA_ARGS__)
#define OP_TYPE_REGISTER(name) static const char *const standinType##name = #name
#define OP_INPUT(...) std::make_tuple(__VA_ARGS__)
#define OP_OUTPUT(...) std::make_tuple(__VA_ARGS__)
#define OP_ATTR(...) std::make_tuple(__VA_ARGS__)
#define ADD_TO_LAUNCHER_LIST_AICORE(name, ...) Launch(standinType##name, __VA_ARGS__)
#define OP_LOGE(status, ...) std::fprintf(stderr, __VA_ARGS__)
#endif  // STANDIN_OPDEV_H
