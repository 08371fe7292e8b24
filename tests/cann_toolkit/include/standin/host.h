// SPDX-License-Identifier: Apache-2.0
// Stand-in declarations for host code that is built with a CANN toolkit: only what this project uses.
// Registrations are handed to libregister as JSON, for op_build and for the checks of the kernel compiler.
#ifndef STANDIN_HOST_H
#define STANDIN_HOST_H

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

extern "C" {
void standin_register(const char *kind, const char *name, const char *json);
}

namespace ge
{
using graphStatus = uint32_t;
constexpr graphStatus GRAPH_SUCCESS = 0, GRAPH_FAILED = 0xFFFFFFFF;
enum DataType : int { DT_FLOAT = 0, DT_FLOAT16 = 1, DT_INT32 = 3, DT_INT64 = 9, DT_BF16 = 27 };
enum Format : int { FORMAT_ND = 2 };
}  // namespace ge

namespace fe
{
struct PlatFormInfos {};
}  // namespace fe

namespace gert
{

class Shape
{
  public:
    size_t GetDimNum() const { return dims_.size(); }
    int64_t GetDim(size_t i) const { return dims_[i]; }
    void SetDimNum(size_t count) { dims_.resize(count); }
    void AppendDim(int64_t size) { dims_.push_back(size); }

  private:
    std::vector<int64_t> dims_;
};

struct StorageShape {
    const Shape &GetStorageShape() const { return shape; }
    Shape shape;
};

struct CompileTimeTensorDesc {
    ge::DataType GetDataType() const { return type; }
    ge::DataType type = ge::DT_FLOAT;
};

struct Tensor {
    template <typename T>
    const T *GetData() const
    {
        return static_cast<const T *>(data);
    }
    int64_t GetShapeSize() const { return size; }
    const void *data = nullptr;
    int64_t size = 0;
};

/// Every attribute is absent: nothing of this toolkit calls a tiling.
struct RuntimeAttrs {
    const bool *GetBool(size_t) const { return nullptr; }
    const int64_t *GetInt(size_t) const { return nullptr; }
    const float *GetFloat(size_t) const { return nullptr; }
    const char *GetStr(size_t) const { return nullptr; }
};

struct TilingData {
    size_t GetCapacity() const { return 2048; }
    void *GetData() { return bytes; }
    void SetDataSize(size_t) {}
    char bytes[2048];
};

struct Inputs {
    const CompileTimeTensorDesc *GetOptionalInputDesc(size_t) const { return nullptr; }
    const Tensor *GetOptionalInputTensor(size_t) const { return nullptr; }
    const RuntimeAttrs *GetAttrs() const { return nullptr; }
};

struct TilingContext : Inputs {
    const StorageShape *GetOptionalInputShape(size_t) const { return nullptr; }
    const StorageShape *GetOutputShape(size_t) const { return nullptr; }
    const CompileTimeTensorDesc *GetOutputDesc(size_t) const { return nullptr; }
    fe::PlatFormInfos *GetPlatformInfo() const { return nullptr; }
    TilingData *GetRawTilingData() { return nullptr; }
    size_t *GetWorkspaceSizes(size_t) { return nullptr; }
    ge::graphStatus SetBlockDim(uint32_t) { return ge::GRAPH_SUCCESS; }
    ge::graphStatus SetScheduleMode(uint32_t) { return ge::GRAPH_SUCCESS; }
};

struct InferShapeContext : Inputs {
    const Shape *GetInputShape(size_t) const { return nullptr; }
    const Shape *GetOptionalInputShape(size_t) const { return nullptr; }
    Shape *GetOutputShape(size_t) { return nullptr; }
};

struct InferDataTypeContext {
    ge::DataType GetInputDataType(size_t) const { return ge::DT_FLOAT; }
    ge::graphStatus SetOutputDataType(size_t, ge::DataType) { return ge::GRAPH_SUCCESS; }
};

}  // namespace gert

namespace platform_ascendc
{
struct PlatformAscendC {
    explicit PlatformAscendC(fe::PlatFormInfos *) {}
    uint32_t GetCoreNumAic() const { return 20; }
    uint32_t GetCoreNumAiv() const { return 40; }
};
}  // namespace platform_ascendc
#endif  // STANDIN_HOST_H
