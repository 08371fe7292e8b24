// SPDX-License-Identifier: Apache-2.0
/*
 * Shadow memory: who last wrote and read each granule of a store, and which bytes are defined
 *
 * A page is uniform (one entry stands for all its granules) until an access covers a part of it;
 * then it gets one entry per granule. A write of the whole page makes it uniform again. Kernels
 * move tiles, so nearly every page of a real kernel is uniform, and an instruction costs a few
 * compares per page. The entries of all pages lie in one array per kind, because that loop is the
 * cost of the checked machine.
 *
 * An entry follows FastTrack: the last write, and the reads since then that are not ordered among
 * themselves. Two readers fit; more go to a shared list. A new access races when an entry holds an
 * access that the issuing pipe's clock does not know to be finished.
 */
#ifndef FLA_TWIN_MACHINE_SHADOW_H
#define FLA_TWIN_MACHINE_SHADOW_H

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "types.h"

namespace twin
{

/// One access in a word: the time on its pipe (0 = none), the agent (core * 8 + pipe), the source
/// line as a site number.
using Epoch = uint64_t;
constexpr Epoch MakeEpoch(uint32_t time, uint32_t agent, uint32_t site)
{
    return time | static_cast<Epoch>(agent) << 32 | static_cast<Epoch>(site) << 48;
}
constexpr uint32_t TimeOf(Epoch e)
{
    return static_cast<uint32_t>(e);
}
constexpr uint32_t AgentOf(Epoch e)
{
    return static_cast<uint32_t>(e >> 32) & 0xffff;
}
constexpr uint32_t SiteOf(Epoch e)
{
    return static_cast<uint32_t>(e >> 48);
}
constexpr bool SameAgent(Epoch a, Epoch b)
{
    return (((a ^ b) >> 32) & 0xffff) == 0;
}

/// Agent that says: the readers are lists[time].
constexpr uint32_t kReaderList = 0xffff;

/// What the issuing pipe knows, and who it is. `known` are the pipes of the own core, `remote` all
/// other agents.
struct Viewer {
    Epoch me;
    const uint32_t *known;
    const uint32_t *remote;
    std::vector<std::vector<Epoch>> *lists;
    Epoch fine = 0;  // the last access found ordered: neighbouring pages mostly hold the same

    bool Ordered(Epoch e)
    {
        if (e == fine || TimeOf(e) == 0) {
            return true;
        }
        uint32_t agent = AgentOf(e);
        bool mine = (agent >> 3) == (AgentOf(me) >> 3);
        if (TimeOf(e) > (mine ? known[agent & 7] : remote[agent])) {
            // The same instruction reads and writes the same place: no race with itself.
            return static_cast<uint32_t>(e) == TimeOf(me) && SameAgent(e, me);
        }
        fine = e;
        return true;
    }
};

/// What an access found: nothing, an unordered access, or a byte that is not defined.
struct Finding {
    enum Kind : uint8_t { kFine, kRace, kUndefined } kind = kFine;
    bool otherWrites = false;
    uint64_t at = 0;  // byte offset in the store
    Epoch other = 0;
};

/// Zeroed memory that costs nothing until it is used: a launch touches a small part of a large
/// tensor.
template <typename T>
class ZeroArray
{
  public:
    void Reset(size_t n)
    {
        data_.reset(static_cast<T *>(std::calloc(n != 0 ? n : 1, sizeof(T))));
        if (data_ == nullptr) {
            throw std::bad_alloc();
        }
    }
    T &operator[](size_t i) { return data_.get()[i]; }
    const T &operator[](size_t i) const { return data_.get()[i]; }

  private:
    struct Free {
        void operator()(T *p) const { std::free(p); }
    };
    std::unique_ptr<T[], Free> data_;
};

template <int kPageShift, int kGranuleShift>
class Shadow
{
  public:
    static constexpr uint64_t kPageBytes = 1ULL << kPageShift;
    static constexpr int kCells = 1 << (kPageShift - kGranuleShift);
    static constexpr int kWords = static_cast<int>(kPageBytes / 64);

    /// `scale` host bytes stand for one byte of the store (2 for L0A and L0B). arrives: contents
    /// come from outside.
    void Reset(uint8_t *host, uint32_t scale, uint64_t bytes, bool arrives)
    {
        host_ = host;
        scale_ = scale;
        bytes_ = bytes;
        pages_ = (bytes + kPageBytes - 1) >> kPageShift;
        state_.Reset(pages_);
        write_.Reset(pages_);
        read0_.Reset(pages_);
        read1_.Reset(pages_);
        detailOf_.Reset(pages_);
        if (arrives) {
            std::memset(&state_[0], kTouched | kDefined, pages_);
        }
        freeDetails_.clear();
        for (uint32_t i = 0; i < details_.size(); ++i) {
            freeDetails_.push_back(i);
        }
    }

    /// Checks and records one contiguous access. Only the first problem is returned.
    Finding Touch(uint64_t begin, uint64_t end, Access access, Viewer &viewer)
    {
        uint64_t page = begin >> kPageShift, last = end >> kPageShift;
        uint64_t low = begin & (kPageBytes - 1), high = end & (kPageBytes - 1);
        if (high != 0 && end == bytes_) {  // the last page of the store may be a short one
            ++last;
            high = 0;
        }
        Finding f;
        if (low != 0 || page == last) {
            uint64_t stop = page == last ? high : kPageBytes;
            if (stop > low && !TouchPart(page, low, stop, access, viewer, f)) {
                return f;
            }
            ++page;
        }
        bool fine =
            access == Access::kRead      ? TouchPages<Access::kRead>(page, last, viewer, f)
            : access == Access::kReadAny ? TouchPages<Access::kReadAny>(page, last, viewer, f)
            : access == Access::kWrite ? TouchPages<Access::kWrite>(page, last, viewer, f)
                                       : TouchPages<Access::kWriteUndefined>(page, last, viewer, f);
        if (fine && high != 0 && page <= last) {
            TouchPart(last, 0, high, access, viewer, f);
        }
        return f;
    }

    bool Defined(uint64_t begin, uint64_t end) const
    {
        for (uint64_t b = begin; b < end;) {
            uint64_t page = b >> kPageShift, low = b & (kPageBytes - 1);
            uint64_t high = std::min<uint64_t>(kPageBytes, low + (end - b));
            if ((state_[page] & kDetail) != 0 ? FirstUndefined(Get(page), low, high) != high
                                              : (state_[page] & kDefined) == 0) {
                return false;
            }
            b += high - low;
        }
        return true;
    }

    void Mark(uint64_t begin, uint64_t end, bool defined)
    {
        for (uint64_t b = begin; b < end;) {
            uint64_t page = b >> kPageShift, low = b & (kPageBytes - 1);
            uint64_t high = std::min<uint64_t>(kPageBytes, low + (end - b));
            FirstTouch(page, false);
            uint8_t &state = state_[page];
            if ((state & kDetail) == 0 && low == 0 && high == PageEnd(page)) {
                state = static_cast<uint8_t>(kTouched | (defined ? kDefined : 0));
            } else if ((state & kDetail) != 0 || ((state & kDefined) != 0) != defined) {
                SetBits(Expand(page), low, high, defined);
            }
            b += high - low;
        }
    }

    /// dst bytes become as defined as src bytes. `src` may be this shadow's own.
    template <class Other>
    void CopyBits(uint64_t to, const Other &src, uint64_t from, uint64_t bytes)
    {
        if (src.Defined(from, from + bytes)) {
            Mark(to, to + bytes, true);
            return;
        }
        for (uint64_t i = 0; i < bytes; ++i) {  // rare: a tail that nobody wrote
            Mark(to + i, to + i + 1, src.Defined(from + i, from + i + 1));
        }
    }

    /// Fills what nobody touched with poison, so that an output that was never written shows.
    void PoisonUntouched()
    {
        for (uint64_t page = 0; page < pages_; ++page) {
            FirstTouch(page, false);
        }
    }

    /// Last write at this byte; for the scalar cache.
    Epoch LastWrite(uint64_t byte) const
    {
        uint64_t page = byte >> kPageShift;
        return (state_[page] & kDetail) != 0
                   ? Get(page).write[(byte & (kPageBytes - 1)) >> kGranuleShift]
                   : write_[page];
    }

  private:
    enum State : uint8_t { kDetail = 1, kDefined = 2, kTouched = 4 };
    struct Detail {
        Epoch write[kCells], read0[kCells], read1[kCells];
        uint64_t defined[kWords];
    };

    uint64_t PageEnd(uint64_t page) const
    {
        return std::min<uint64_t>(kPageBytes, bytes_ - (page << kPageShift));
    }
    Detail &Get(uint64_t page) { return *details_[detailOf_[page]]; }
    const Detail &Get(uint64_t page) const { return *details_[detailOf_[page]]; }

    void FirstTouch(uint64_t page, bool overwritten)
    {
        if ((state_[page] & kTouched) != 0) {
            return;
        }
        state_[page] |= kTouched;
        if (!overwritten) {  // all ones is a NaN in half, bf16 and float
            std::memset(host_ + (page << kPageShift) * scale_, 0xff, PageEnd(page) * scale_);
        }
    }

    /// Calls f(word, mask) for the words of the bits [low, high) until it returns false.
    template <class F>
    static void ForWords(uint64_t low, uint64_t high, const F &f)
    {
        for (uint64_t b = low; b < high;) {
            uint64_t bit = b & 63, n = std::min<uint64_t>(64 - bit, high - b);
            if (!f(b >> 6, (n == 64 ? ~0ULL : (1ULL << n) - 1) << bit)) {
                return;
            }
            b += n;
        }
    }
    static void SetBits(Detail &d, uint64_t low, uint64_t high, bool value)
    {
        ForWords(low, high, [&](uint64_t word, uint64_t mask) {
            d.defined[word] = value ? d.defined[word] | mask : d.defined[word] & ~mask;
            return true;
        });
    }
    static uint64_t FirstUndefined(const Detail &d, uint64_t low, uint64_t high)
    {
        uint64_t found = high;
        ForWords(low, high, [&](uint64_t word, uint64_t mask) {
            uint64_t missing = ~d.defined[word] & mask;
            if (missing != 0) {
                found = (word << 6) + static_cast<uint64_t>(__builtin_ctzll(missing));
            }
            return missing == 0;
        });
        return found;
    }

    Detail &Expand(uint64_t page)
    {
        if ((state_[page] & kDetail) != 0) {
            return Get(page);
        }
        if (freeDetails_.empty()) {
            freeDetails_.push_back(static_cast<uint32_t>(details_.size()));
            details_.push_back(std::make_unique<Detail>());
        }
        detailOf_[page] = freeDetails_.back();
        freeDetails_.pop_back();
        Detail &d = Get(page);
        std::fill(std::begin(d.write), std::end(d.write), write_[page]);
        std::fill(std::begin(d.read0), std::end(d.read0), read0_[page]);
        std::fill(std::begin(d.read1), std::end(d.read1), read1_[page]);
        std::memset(d.defined, (state_[page] & kDefined) != 0 ? 0xff : 0, sizeof d.defined);
        state_[page] |= kDetail;
        return d;
    }

    static bool Race(Finding &f, Epoch other, bool otherWrites)
    {
        f.kind = Finding::kRace;
        f.other = other;
        f.otherWrites = otherWrites;
        return false;
    }

    /// Checks one entry against the access and records it there.
    template <bool kWrite>
    static bool Visit(Epoch &write, Epoch &read0, Epoch &read1, Viewer &v, Finding &f)
    {
        if (!v.Ordered(write)) {
            return Race(f, write, true);
        }
        if constexpr (kWrite) {
            if ((read0 | read1) != 0 && !ReadersOrdered(read0, read1, v, f)) {
                return false;
            }
            write = v.me;
            read0 = read1 = 0;
        } else if (read0 == 0 || SameAgent(read0, v.me)) {
            read0 = v.me;
        } else if (read1 == 0 || SameAgent(read1, v.me)) {
            read1 = v.me;
        } else {
            AddReader(read0, read1, v);
        }
        return true;
    }
    static bool ReadersOrdered(Epoch read0, Epoch read1, Viewer &v, Finding &f)
    {
        if (!v.Ordered(read0)) {
            return Race(f, read0, false);
        }
        if (AgentOf(read1) != kReaderList) {
            return v.Ordered(read1) || Race(f, read1, false);
        }
        for (Epoch e : (*v.lists)[TimeOf(read1)]) {
            if (!v.Ordered(e)) {
                return Race(f, e, false);
            }
        }
        return true;
    }
    /// A third reader: drop readers the new one is ordered after, else keep a list. Lists are never
    /// changed once made, because the entries of an expanded page share them.
    static void AddReader(Epoch &read0, Epoch &read1, Viewer &v)
    {
        if (v.Ordered(read0)) {
            read0 = v.me;
            return;
        }
        bool isList = AgentOf(read1) == kReaderList;
        if (!isList && v.Ordered(read1)) {
            read1 = v.me;
            return;
        }
        std::vector<Epoch> list;
        if (isList) {
            for (Epoch e : (*v.lists)[TimeOf(read1)]) {
                if (!SameAgent(e, v.me) && !v.Ordered(e)) {
                    list.push_back(e);
                }
            }
        } else {
            list.push_back(read1);
        }
        list.push_back(v.me);
        if (v.lists->back() != list) {  // neighbouring pages make the same list
            v.lists->push_back(std::move(list));
        }
        read1 = MakeEpoch(static_cast<uint32_t>(v.lists->size() - 1), kReaderList, 0);
    }

    /// Whole pages [page, last).
    template <Access access>
    bool TouchPages(uint64_t page, uint64_t last, Viewer &v, Finding &f)
    {
        constexpr bool write = IsWrite(access);
        for (; page < last; ++page) {
            uint8_t state = state_[page];
            if ((state & (kTouched | kDetail)) != kTouched) {
                if ((state & kDetail) != 0) {
                    if (!TouchPart(page, 0, PageEnd(page), access, v, f)) {
                        return false;
                    }
                    continue;
                }
                FirstTouch(page, access == Access::kWrite);
            }
            if (!Visit<write>(write_[page], read0_[page], read1_[page], v, f)) {
                f.at = page << kPageShift;
                return false;
            }
            if constexpr (write) {
                state_[page] = access == Access::kWrite ? kTouched | kDefined : kTouched;
            } else if (access == Access::kRead && (state & kDefined) == 0) {
                f.kind = Finding::kUndefined;
                f.at = page << kPageShift;
                return false;
            }
        }
        return true;
    }

    bool TouchPart(uint64_t page, uint64_t low, uint64_t high, Access access, Viewer &v, Finding &f)
    {
        FirstTouch(page, false);
        Detail &d = Expand(page);
        bool write = IsWrite(access);
        for (uint64_t g = low >> kGranuleShift; g <= (high - 1) >> kGranuleShift; ++g) {
            if (!(write ? Visit<true>(d.write[g], d.read0[g], d.read1[g], v, f)
                        : Visit<false>(d.write[g], d.read0[g], d.read1[g], v, f))) {
                f.at = (page << kPageShift) + std::max<uint64_t>(low, g << kGranuleShift);
                return false;
            }
        }
        if (access == Access::kRead) {
            uint64_t hole = FirstUndefined(d, low, high);
            if (hole != high) {
                f.kind = Finding::kUndefined;
                f.at = (page << kPageShift) + hole;
                return false;
            }
        } else if (write && low == 0 &&
                   high == PageEnd(page)) {  // every entry now holds this write
            write_[page] = d.write[0];
            read0_[page] = read1_[page] = 0;
            state_[page] = access == Access::kWrite ? kTouched | kDefined : kTouched;
            freeDetails_.push_back(detailOf_[page]);
        } else if (write) {
            SetBits(d, low, high, access == Access::kWrite);
        }
        return true;
    }

    uint8_t *host_ = nullptr;
    uint32_t scale_ = 1;
    uint64_t bytes_ = 0, pages_ = 0;
    ZeroArray<uint8_t> state_;
    ZeroArray<Epoch> write_, read0_, read1_;
    ZeroArray<uint32_t> detailOf_;
    std::vector<std::unique_ptr<Detail>> details_;
    std::vector<uint32_t> freeDetails_;
};

/// 32-byte granules, because the device moves on-chip data in 32-byte blocks; a page is one vector
/// repeat.
using LocalShadow = Shadow<8, 5>;
/// 128-byte pages of 2-byte granules: two cores may write neighbouring bf16 elements of one array.
using GlobalShadow = Shadow<7, 1>;

}  // namespace twin
#endif  // FLA_TWIN_MACHINE_SHADOW_H
