// SPDX-License-Identifier: Apache-2.0
// One operator call as host code sees it: ports, attributes and integer arrays by contract name.
// The caller (aclnn entry, CANN tiling adapter, unit test) fills it; a plan only reads it. When a
// plan runs, ranks, dtypes and dimension letters have already been checked against op.json.
#ifndef FLA_COMMON_HOST_OP_CALL_H
#define FLA_COMMON_HOST_OP_CALL_H

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace fla
{

/// aclDataType numbers, as CANN and the ports of op.json use them.
enum class DType : int { kFloat = 0, kFloat16 = 1, kInt32 = 3, kInt64 = 9, kBFloat16 = 27 };

struct TensorArg {
    DType dtype = DType::kFloat;
    std::vector<int64_t> dims;
    bool contiguous = true;  // outputs must be; inputs may be any view
};

class OpCall
{
  public:
    /// A tensor port (input or output), null when the caller left it out.
    const TensorArg *Tensor(const std::string &name) const { return Find(tensors, name); }
    bool Has(const std::string &name) const { return tensors.count(name) || intArrays.count(name); }
    bool Is(const std::string &name, DType dtype) const
    {
        const TensorArg *t = Tensor(name);
        return t != nullptr && t->dtype == dtype;
    }
    /// A dimension letter of the contract ("T", "HV", ...), bound from the given tensors; 0 if
    /// unbound.
    int64_t Dim(const std::string &letter) const { return Value(dims, letter); }
    bool Flag(const std::string &name) const { return Value(ints, name) != 0; }
    int64_t Int(const std::string &name) const { return Value(ints, name); }
    double Real(const std::string &name) const { return Value(reals, name); }
    std::string Text(const std::string &name) const { return Value(texts, name); }
    /// An integer array (cu_seqlens, chunk_indices), null when absent.
    const std::vector<int64_t> *Ints(const std::string &name) const
    {
        return Find(intArrays, name);
    }

    std::map<std::string, TensorArg> tensors;
    std::map<std::string, int64_t> dims;
    std::map<std::string, int64_t> ints;  // int and bool attributes
    std::map<std::string, double> reals;
    std::map<std::string, std::string> texts;
    std::map<std::string, std::vector<int64_t>> intArrays;

  private:
    template <typename Map>
    static const typename Map::mapped_type *Find(const Map &map, const std::string &name)
    {
        auto it = map.find(name);
        return it == map.end() ? nullptr : &it->second;
    }
    template <typename Map>
    static typename Map::mapped_type Value(const Map &map, const std::string &name)
    {
        const auto *found = Find(map, name);
        return found == nullptr ? typename Map::mapped_type{} : *found;
    }
};

}  // namespace fla
#endif  // FLA_COMMON_HOST_OP_CALL_H
