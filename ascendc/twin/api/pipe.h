// SPDX-License-Identifier: Apache-2.0
/*
 * TPipe, TQue, TQueBind, TBuf — the framework's memory and event manager
 *
 * TPipe hands out each store from its start to its end and never takes back before Reset. A queue
 * buffer goes FREE -AllocTensor-> OCCUPIED -EnQue-> FULL -DeQue-> TAKEN -FreeTensor-> FREE. EnQue
 * raises producer->consumer and DeQue waits for it; FreeTensor raises consumer->producer and the
 * next AllocTensor of the buffer waits for it. The fast build keeps only the states it needs to
 * pick a buffer.
 */
#ifndef FLA_TWIN_API_PIPE_H
#define FLA_TWIN_API_PIPE_H

#include "sync.h"

namespace twin
{

/// Which pipe fills a buffer at this position, and which one empties it.
constexpr Pipe ProducerOf(AscendC::TPosition p)
{
    using P = AscendC::TPosition;
    return p == P::A2 || p == P::B2 || p == P::C2 ? Pipe::MTE1
           : p == P::CO1                          ? Pipe::M
           : p == P::VECOUT || p == P::VECCALC    ? Pipe::V
                                                  : Pipe::MTE2;
}
constexpr Pipe ConsumerOf(AscendC::TPosition p)
{
    using P = AscendC::TPosition;
    return p == P::A1 || p == P::B1 || p == P::C1   ? Pipe::MTE1
           : p == P::A2 || p == P::B2 || p == P::C2 ? Pipe::M
           : p == P::CO1                            ? Pipe::FIX
           : p == P::VECIN || p == P::VECCALC       ? Pipe::V
                                                    : Pipe::MTE3;
}

}  // namespace twin

namespace AscendC
{
inline namespace TWIN_NS
{

class TPipe;
TPipe *GetTPipePtr();

/// A queue between the pipe that fills `src` and the pipe that empties `dst`.
template <TPosition src, TPosition dst, int32_t depth, auto mask = 0>
class TQueBind
{
  public:
    /// The next free buffer, once its last user's pipe is done with it.
    template <typename T>
    LocalTensor<T> AllocTensor(TWIN_HERE)
    {
        uint32_t b = NextFree();
        if constexpr (twin::kChecked) {
            if (b == kNone) {
                twin::CheckedFault("queue-alloc",
                                   "free a tensor first, or give InitBuffer more buffers", where,
                                   "AllocTensor finds all %u buffers of the queue in use", count_);
            }
            if (freeEvent_[b] >= 0) {
                twin::CheckedWaitFlag(kFreeEvent, freeEvent_[b], twin::FlagUser::kQueueFree, where);
                twin::CheckedReleaseEvent(kFreeEvent, freeEvent_[b], twin::FlagUser::kQueueFree,
                                          where);
                freeEvent_[b] = -1;
            }
        }
        state_[b] = kOccupied;
        last_ = b;
        return LocalTensor<T>(store_, kHome, base_ + b * bytes_, bytes_);
    }
    template <typename T>
    void AllocTensor(LocalTensor<T> &tensor, TWIN_HERE)
    {
        tensor = AllocTensor<T>(where);
    }

    /// Hands the buffer on: what the producing pipe has issued for it must be done before DeQue
    /// lets go.
    template <typename T>
    bool EnQue(const LocalTensor<T> &tensor, TWIN_HERE)
    {
        uint32_t b = BufferOf(tensor, where);
        if constexpr (twin::kChecked) {
            if (state_[b] != kOccupied) {
                twin::CheckedFault("queue-enque",
                                   "EnQue each tensor once, between AllocTensor and DeQue", where,
                                   "EnQue of a buffer that is %s", kStateName[state_[b]]);
            }
            if (full_ >= (depth == 0 ? 1 : depth)) {
                twin::CheckedFault(
                    "queue-depth", "DeQue before the next EnQue, or declare a deeper queue", where,
                    "EnQue number %d without DeQue on a queue of depth %d", full_ + 1, depth);
            }
            fullEvent_[b] = static_cast<int8_t>(
                twin::CheckedAllocEvent(kFullEvent, twin::FlagUser::kQueueFull, where));
            twin::CheckedSetFlag(kFullEvent, fullEvent_[b], twin::FlagUser::kQueueFull, where);
        }
        state_[b] = kFull;
        order_[(head_ + full_) % kMost] = static_cast<uint8_t>(b);
        ++full_;
        return true;
    }

    /// Buffers come out in the order they went in.
    template <typename T>
    LocalTensor<T> DeQue(TWIN_HERE)
    {
        if constexpr (twin::kChecked) {
            if (full_ == 0) {
                twin::CheckedFault("queue-deque", "EnQue a tensor first", where,
                                   "DeQue of an empty queue");
            }
        }
        uint32_t b = order_[head_];
        head_ = (head_ + 1) % kMost;
        --full_;
        if constexpr (twin::kChecked) {
            twin::CheckedWaitFlag(kFullEvent, fullEvent_[b], twin::FlagUser::kQueueFull, where);
            twin::CheckedReleaseEvent(kFullEvent, fullEvent_[b], twin::FlagUser::kQueueFull, where);
        }
        state_[b] = kTaken;
        return LocalTensor<T>(store_, kHome, base_ + b * bytes_, bytes_);
    }
    template <typename T>
    void DeQue(LocalTensor<T> &tensor, TWIN_HERE)
    {
        tensor = DeQue<T>(where);
    }

    /// The consumer has issued its last instruction on the buffer.
    template <typename T>
    void FreeTensor(const LocalTensor<T> &tensor, TWIN_HERE)
    {
        uint32_t b = BufferOf(tensor, where);
        if constexpr (twin::kChecked) {
            if (state_[b] != kTaken && state_[b] != kOccupied) {
                twin::CheckedFault("queue-free", "free a tensor once, after DeQue or AllocTensor",
                                   where, "FreeTensor of a buffer that is %s",
                                   kStateName[state_[b]]);
            }
            freeEvent_[b] = static_cast<int8_t>(
                twin::CheckedAllocEvent(kFreeEvent, twin::FlagUser::kQueueFree, where));
            twin::CheckedSetFlag(kFreeEvent, freeEvent_[b], twin::FlagUser::kQueueFree, where);
        }
        state_[b] = kFree;
    }

    bool VacantInQue() const { return full_ < (depth == 0 ? 1 : depth); }
    bool HasTensorInQue() const { return full_ != 0; }
    int32_t GetTensorCountInQue() const { return full_; }
    bool HasIdleBuffer() const { return NextFree() != kNone; }
    /// Waits for every buffer that was freed and not allocated again.
    void FreeAllEvent(TWIN_HERE)
    {
        if constexpr (twin::kChecked) {
            for (uint32_t b = 0; b < count_; ++b) {
                if (freeEvent_[b] >= 0) {
                    twin::CheckedWaitFlag(kFreeEvent, freeEvent_[b], twin::FlagUser::kQueueFree,
                                          where);
                    twin::CheckedReleaseEvent(kFreeEvent, freeEvent_[b], twin::FlagUser::kQueueFree,
                                              where);
                    freeEvent_[b] = -1;
                }
            }
        }
    }

  protected:
    friend class TPipe;
    static constexpr TPosition kHome = src == TPosition::GM ? dst : src;  // where the buffers lie
    static constexpr uint32_t kMost = 8;                                  // buffers of one queue
    static constexpr uint32_t kNone = ~0U;
    static constexpr int kFullEvent = static_cast<int>(twin::EventBetween(
        twin::ProducerOf(kHome), twin::ConsumerOf(dst == TPosition::GM ? src : dst)));
    static constexpr int kFreeEvent = static_cast<int>(twin::EventBetween(
        twin::ConsumerOf(dst == TPosition::GM ? src : dst), twin::ProducerOf(kHome)));
    enum State : uint8_t { kFree, kOccupied, kFull, kTaken };
    static constexpr const char *kStateName[] = {"free", "allocated", "in the queue",
                                                 "taken out by DeQue"};

    /// Buffers are taken in turn, so that the one freed longest ago is waited for.
    uint32_t NextFree() const
    {
        for (uint32_t i = 1; i <= count_; ++i) {
            uint32_t b = (last_ + i) % count_;
            if (state_[b] == kFree) {
                return b;
            }
        }
        return kNone;
    }
    template <typename T>
    uint32_t BufferOf(const LocalTensor<T> &tensor, twin::Where where) const
    {
        uint64_t offset = tensor.GetPhyAddr() - base_;
        if constexpr (twin::kChecked) {
            if (offset >= static_cast<uint64_t>(count_) * bytes_) {
                twin::CheckedFault("queue-foreign",
                                   "pass the tensor this queue's AllocTensor or DeQue returned",
                                   where, "the tensor at %llu is no buffer of this queue",
                                   static_cast<unsigned long long>(tensor.GetPhyAddr()));
            }
        }
        return static_cast<uint32_t>(offset / bytes_);
    }

    // Buffers by number: where they start, their states, the order of those in the queue, and the
    // event ids in flight.
    uint8_t *store_ = nullptr;
    uint32_t base_ = 0, bytes_ = 1, count_ = 0, last_ = 0, head_ = 0;
    int32_t full_ = 0;
    State state_[kMost] = {};
    uint8_t order_[kMost] = {};
    int8_t fullEvent_[kMost] = {}, freeEvent_[kMost] = {-1, -1, -1, -1, -1, -1, -1, -1};
};

/// VECIN, A1, B1 ... are filled from outside; VECOUT and CO1 are emptied to outside.
template <TPosition pos, int32_t depth, auto mask = 0>
class TQue
    : public TQueBind<pos == TPosition::VECOUT || pos == TPosition::CO1 ? pos : TPosition::GM,
                      pos == TPosition::VECOUT || pos == TPosition::CO1 ? TPosition::GM : pos,
                      depth, mask>
{
};

/// Plain memory: no states, no events.
template <TPosition pos = TPosition::LCM>
class TBuf
{
  public:
    template <typename T>
    LocalTensor<T> Get()
    {
        return LocalTensor<T>(store_, pos, base_, bytes_);
    }
    template <typename T>
    LocalTensor<T> Get(uint32_t elements)
    {
        return GetWithOffset<T>(elements, 0);
    }
    template <typename T>
    LocalTensor<T> GetWithOffset(uint32_t elements, uint32_t byteOffset)
    {
        return LocalTensor<T>(store_, pos, base_ + byteOffset,
                              elements * static_cast<uint32_t>(sizeof(T)));
    }
    uint32_t GetBufLen() const { return bytes_; }

  private:
    friend class TPipe;
    uint8_t *store_ = nullptr;
    uint32_t base_ = 0, bytes_ = 0;
};

/// One per kernel. It owns no memory of its own: a store is the core's, TPipe only says who has
/// which part.
class TPipe
{
  public:
    explicit TPipe(TWIN_HERE) : where_(where) { Init(where); }
    ~TPipe() noexcept(false)  // a tensor left in a queue is found here
    {
        if constexpr (twin::kChecked) {
            twin::CheckedPipeDestroy(this, false, where_);
        }
        if (twin::Me().tpipe == this) {
            twin::Me().tpipe = nullptr;
        }
    }
    TPipe(const TPipe &) = delete;
    TPipe &operator=(const TPipe &) = delete;

    /// What the constructor does; only needed again after Destroy.
    void Init(TWIN_HERE)
    {
        if constexpr (twin::kChecked) {
            twin::CheckedPipeCreate(this, where);
        }
        twin::Me().tpipe = this;
        twin::Me().regs.Reset();
        for (uint64_t &u : used_) {
            u = 0;
        }
    }

    template <class Queue>
    bool InitBuffer(Queue &queue, uint8_t num, uint32_t len, TWIN_HERE)
    {
        constexpr twin::Space space = twin::SpaceOf(Queue::kHome);
        queue.bytes_ = (len + 31) / 32 * 32;
        queue.count_ = num;
        queue.last_ = num - 1U;
        queue.store_ = twin::Me().store[static_cast<int>(space)];
        queue.base_ = Take({space, static_cast<int>(Queue::kHome), num, queue.bytes_, true}, where);
        return true;
    }
    template <TPosition pos>
    bool InitBuffer(TBuf<pos> &buffer, uint32_t len, TWIN_HERE)
    {
        constexpr twin::Space space = twin::SpaceOf(pos);
        buffer.bytes_ = (len + 31) / 32 * 32;
        buffer.store_ = twin::Me().store[static_cast<int>(space)];
        buffer.base_ = Take({space, static_cast<int>(pos), 1, buffer.bytes_, false}, where);
        return true;
    }

    /// Takes an id and keeps it until ReleaseEventID; the fast build has no flags and every id is
    /// 0.
    template <HardEvent event>
    TEventID AllocEventID(TWIN_HERE)
    {
        if constexpr (twin::kChecked) {
            return static_cast<TEventID>(
                twin::CheckedAllocEvent(static_cast<int>(event), twin::FlagUser::kKernel, where));
        } else {
            return 0;
        }
    }
    template <HardEvent event>
    void ReleaseEventID(TEventID id, TWIN_HERE)
    {
        if constexpr (twin::kChecked) {
            twin::CheckedReleaseEvent(static_cast<int>(event), id, twin::FlagUser::kKernel, where);
        }
    }
    TEventID FetchEventID(HardEvent event, TWIN_HERE)
    {
        if constexpr (twin::kChecked) {
            return static_cast<TEventID>(twin::CheckedFetchEvent(static_cast<int>(event), where));
        } else {
            return 0;
        }
    }
    template <HardEvent event>
    TEventID FetchEventID(TWIN_HERE)
    {
        return FetchEventID(event, where);
    }

    // Reset and Destroy end the life of what InitBuffer made.
    /// Gives all memory back. Tensors and queues made before must not be used again.
    void Reset(TWIN_HERE)
    {
        if constexpr (twin::kChecked) {
            twin::CheckedPipeReset(where);
        }
        for (uint64_t &u : used_) {
            u = 0;
        }
    }
    void Destroy(TWIN_HERE)
    {
        if constexpr (twin::kChecked) {
            twin::CheckedPipeDestroy(this, true, where);
        }
        twin::Me().tpipe = nullptr;
    }

  private:
    /// The linear allocator. Overflow is refused in both builds: here it is free, later it would be
    /// another core's data.
    uint32_t Take(const twin::BufferRequest &request, twin::Where where)
    {
        uint64_t &used = used_[static_cast<int>(request.space)];
        uint64_t at = used;
        used += static_cast<uint64_t>(request.bytes) * request.buffers;
        if constexpr (twin::kChecked) {
            twin::CheckedInitBuffer(request, used, where);
        } else if (used > twin::kSpaceBytes[static_cast<int>(request.space)] ||
                   twin::Me().store[static_cast<int>(request.space)] == nullptr) {
            twin::FastCapacityFault(request, used, where);
        }
        return static_cast<uint32_t>(at);
    }

    twin::Where where_;
    uint64_t used_[twin::kLocalSpaces] = {};
};

inline TPipe *GetTPipePtr()
{
    return static_cast<TPipe *>(twin::Me().tpipe);
}

}  // namespace TWIN_NS
}  // namespace AscendC
#endif  // FLA_TWIN_API_PIPE_H
