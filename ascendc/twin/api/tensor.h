// SPDX-License-Identifier: Apache-2.0
// LocalTensor and GlobalTensor: a typed place in a store. They own nothing and check nothing;
// instructions do.
#ifndef FLA_TWIN_API_TENSOR_H
#define FLA_TWIN_API_TENSOR_H

#include "../machine/hooks.h"
#include "../machine/instruction.h"
#include "position.h"
#include "scalar.h"

#ifndef __gm__
#define __gm__
#endif

namespace AscendC
{
inline namespace TWIN_NS
{

template <typename T>
class LocalTensor
{
  public:
    using PrimType = T;

    LocalTensor() = default;
    /// For the machine and TPipe only: kernels get tensors from queues and buffers.
    LocalTensor(uint8_t *store, TPosition position, uint32_t address, uint32_t bytes)
        : store_(store), address_(address), bytes_(bytes), position_(position)
    {
    }

    // --- the API kernels use
    // ------------------------------------------------------------------------------
    T GetValue(uint32_t index, TWIN_HERE) const
    {
        twin::Issue<twin::Pipe::S>(
            "GetValue", where,
            [&](auto &i) {
                i.In(*this, twin::Space::UB, "tensor").Reads((*this)[index], 1, sizeof(T));
            },
            [] {});
        return Host()[index];
    }
    template <typename U>
    void SetValue(uint32_t index, U value, TWIN_HERE) const
    {
        T *place = Host() + index;
        T converted = static_cast<T>(value);
        twin::Issue<twin::Pipe::S>(
            "SetValue", where,
            [&](auto &i) {
                i.In(*this, twin::Space::UB, "tensor").Writes((*this)[index], 1, sizeof(T));
            },
            [=] { *place = converted; });
    }
    LocalTensor operator[](uint32_t offset) const
    {
        LocalTensor t = *this;
        uint32_t bytes = offset * static_cast<uint32_t>(sizeof(T));
        t.address_ += bytes;
        t.bytes_ = bytes < bytes_ ? bytes_ - bytes : 0;
        return t;
    }
    template <typename U>
    LocalTensor<U> ReinterpretCast() const
    {
        return LocalTensor<U>(store_, position_, address_, bytes_);
    }
    template <typename U>
    void SetAddrWithOffset(LocalTensor<U> &source, uint32_t offset)
    {
        *this = source.template ReinterpretCast<T>()[offset];
    }
    uint64_t GetPhyAddr() const { return address_; }
    uint64_t GetPhyAddr(uint32_t offset) const { return address_ + offset * sizeof(T); }
    int32_t GetPosition() const { return static_cast<int32_t>(position_); }
    uint32_t GetSize() const { return bytes_ / sizeof(T); }
    uint32_t GetLength() const { return bytes_; }
    void SetSize(uint32_t elements) { bytes_ = elements * static_cast<uint32_t>(sizeof(T)); }
    void SetBufferLen(uint32_t bytes) { bytes_ = bytes; }

    // --- the twin's side
    // ------------------------------------------------------------------------------------
    /// Host address; for UB, L1, L0C, BT, FB.
    T *Host() const { return reinterpret_cast<T *>(store_ + address_); }
    /// Host image of L0A and L0B: always fp32, see machine/types.h.
    float *HostWide() const { return reinterpret_cast<float *>(store_) + address_ / 2; }
    twin::Space GetSpace() const { return twin::SpaceOf(position_); }
    twin::Region Region() const { return twin::Region{GetSpace(), sizeof(T), address_, bytes_}; }

  private:
    uint8_t *store_ = nullptr;  // host base of the core's store
    uint32_t address_ = 0;      // byte offset inside it: what the device calls the address
    uint32_t bytes_ = 0;
    TPosition position_ = TPosition::MAX;
};

template <typename T>
class GlobalTensor
{
  public:
    using PrimType = T;

    void SetGlobalBuffer(__gm__ T *buffer) { SetGlobalBuffer(buffer, kUnknown); }
    void SetGlobalBuffer(__gm__ T *buffer, uint64_t elements)
    {
        buffer_ = buffer;
        elements_ = elements;
    }
    T GetValue(uint64_t offset, TWIN_HERE) const
    {
        if constexpr (twin::kChecked) {
            T value;
            twin::ScalarRead(buffer_ + offset, &value, sizeof(T), where);
            return value;
        } else {
            return buffer_[offset];
        }
    }
    void SetValue(uint64_t offset, T value, TWIN_HERE)
    {
        if constexpr (twin::kChecked) {
            twin::ScalarWrite(buffer_ + offset, &value, sizeof(T), where);
        } else {
            buffer_[offset] = value;
        }
    }
    GlobalTensor operator[](uint64_t offset) const
    {
        GlobalTensor t = *this;
        t.buffer_ += offset;
        t.elements_ = elements_ == kUnknown ? kUnknown
                      : elements_ > offset  ? elements_ - offset
                                            : 0;
        return t;
    }
    const __gm__ T *GetPhyAddr() const { return buffer_; }
    __gm__ T *GetPhyAddr(uint64_t offset) const { return buffer_ + offset; }
    uint64_t GetSize() const { return elements_ == kUnknown ? 0 : elements_; }
    /// A hint about L2 changes speed, never results.
    template <CacheRwMode mode = CacheRwMode::RW>
    void SetL2CacheHint(CacheMode)
    {
    }

    // --- the twin's side
    // ------------------------------------------------------------------------------------
    T *Host() const { return buffer_; }
    twin::Region Region() const
    {
        return twin::Region{twin::Space::GM, sizeof(T), reinterpret_cast<uint64_t>(buffer_),
                            elements_ == kUnknown ? kUnknown : elements_ * sizeof(T)};
    }

  private:
    static constexpr uint64_t kUnknown = ~0ULL;
    T *buffer_ = nullptr;
    uint64_t elements_ = 0;
};

}  // namespace TWIN_NS
}  // namespace AscendC
#endif  // FLA_TWIN_API_TENSOR_H
