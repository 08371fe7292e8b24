// SPDX-License-Identifier: Apache-2.0
/*
 * Shadow memory: who last wrote and read each granule of a store, and which bytes are defined
 *
 * A page is uniform (one cell stands for all its granules) until an access covers a part of it; then it gets one
 * cell per granule. A write of the whole page makes it uniform again. Kernels move tiles, so nearly every page
 * of a real kernel is uniform and an instruction costs one cell per page.
 *
 * A cell follows FastTrack: the last write, and the reads since then that are not ordered among themselves. Two
 * readers fit in the cell; more go to a shared list. A new access races when a cell holds an access that the
 * issuing pipe's clock does not know to be finished.
 */
#ifndef FLA_TWIN_MACHINE_SHADOW_H
#define FLA_TWIN_MACHINE_SHADOW_H

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "types.h"

namespace twin {

/// One access: the agent (core * 8 + pipe), its time on that pipe (0 = none), and the source line as a site number.
struct Epoch {
    uint32_t time = 0;
    uint16_t agent = 0;
    uint16_t site = 0;
    bool operator==(const Epoch &o) const { return std::memcmp(this, &o, sizeof o) == 0; }
};
static_assert(sizeof(Epoch) == 8, "compared as one word");

/// Agent number that says: read lists[time] instead.
constexpr uint16_t kReaderList = 0xffff;

struct Cell {
    Epoch write, read0, read1;
};

/// What the issuing pipe knows, and who it is. `known` are the pipes of the own core, `remote` all other agents.
struct Viewer {
    Epoch me;
    const uint32_t *known;
    const uint32_t *remote;
    std::vector<std::vector<Epoch>> *lists;
    Epoch fine;  // the last epoch found ordered: neighbouring pages mostly hold the same

    bool Ordered(const Epoch &e)
    {
        if (e.time == 0 || e == fine) {
            return true;
        }
        bool mine = (e.agent >> 3) == (me.agent >> 3);
        if (mine ? e.time > known[e.agent & 7] : e.time > remote[e.agent]) {
            // The same instruction reads and writes the same place: no race with itself.
            return e.agent == me.agent && e.time == me.time;
        }
        fine = e;
        return true;
    }
};

/// What an access found: nothing, an unordered access, or a byte that is not defined.
struct Finding {
    enum Kind : uint8_t { kFine, kRace, kUndefined } kind = kFine;
    uint64_t at = 0;       // byte offset in the store
    bool otherWrites = false;
    Epoch other;
};

template <int kPageShift, int kGranuleShift> class Shadow
{
  public:
    static constexpr uint64_t kPageBytes = 1ULL << kPageShift;
    static constexpr int kCells = 1 << (kPageShift - kGranuleShift);
    static constexpr int kWords = kPageBytes >= 64 ? static_cast<int>(kPageBytes / 64) : 1;

    /// `scale` host bytes stand for one byte of the store (2 for L0A and L0B). defined: contents arrive from outside.
    void Reset(uint8_t *host, uint32_t scale, uint64_t bytes, bool defined)
    {
        host_ = host;
        scale_ = scale;
        pages_.assign((bytes + kPageBytes - 1) >> kPageShift, Page{});
        bytes_ = bytes;
        for (Page &p : pages_) {
            p.defined = p.touched = defined;
        }
        details_.clear();
        freeDetails_.clear();
    }

    /// Checks and records one contiguous access. Only the first problem is returned.
    Finding Touch(uint64_t begin, uint64_t end, Access access, Viewer &viewer)
    {
        while (begin < end) {
            uint64_t number = begin >> kPageShift;
            uint64_t low = begin & (kPageBytes - 1);
            uint64_t high = end - (number << kPageShift);
            if (high > kPageBytes) {
                high = kPageBytes;
            }
            Page &p = pages_[number];
            bool whole = low == 0 && high == PageEnd(number);
            if (!p.touched) {
                FirstTouch(p, number, whole && access == Access::kWrite);
            }
            Finding f;
            if (whole && p.detail == 0) {
                f = TouchWhole(p, access, viewer);
            } else {
                f = TouchPart(p, low, high, whole, access, viewer);
            }
            if (f.kind != Finding::kFine) {
                f.at += number << kPageShift;
                return f;
            }
            begin = (number + 1) << kPageShift;
        }
        return Finding{};
    }

    bool Defined(uint64_t begin, uint64_t end) const
    {
        for (uint64_t b = begin; b < end;) {
            const Page &p = pages_[b >> kPageShift];
            uint64_t low = b & (kPageBytes - 1);
            uint64_t high = std::min<uint64_t>(kPageBytes, low + (end - b));
            if (p.detail == 0 ? !p.defined : FirstUndefined(Get(p), low, high) != high) {
                return false;
            }
            b += high - low;
        }
        return true;
    }

    void Mark(uint64_t begin, uint64_t end, bool defined)
    {
        for (uint64_t b = begin; b < end;) {
            uint64_t number = b >> kPageShift;
            Page &p = pages_[number];
            uint64_t low = b & (kPageBytes - 1);
            uint64_t high = std::min<uint64_t>(kPageBytes, low + (end - b));
            if (!p.touched) {
                FirstTouch(p, number, false);
            }
            if (p.detail == 0 && low == 0 && high == PageEnd(number)) {
                p.defined = defined;
            } else if (p.detail != 0 || p.defined != defined) {
                Expand(p);
                SetBits(Get(p), low, high, defined);
            }
            b += high - low;
        }
    }

    /// dst bytes become as defined as src bytes. `src` may be this shadow's own.
    template <class Other> void CopyBits(uint64_t to, const Other &src, uint64_t from, uint64_t bytes)
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
        for (size_t n = 0; n < pages_.size(); ++n) {
            if (!pages_[n].touched) {
                FirstTouch(pages_[n], n, false);
            }
        }
    }

    /// Last write at this byte; for the scalar cache.
    Epoch LastWrite(uint64_t byte) const
    {
        const Page &p = pages_[byte >> kPageShift];
        return p.detail == 0 ? p.cell.write : Get(p).cell[(byte & (kPageBytes - 1)) >> kGranuleShift].write;
    }

  private:
    struct Page {
        Cell cell;
        uint32_t detail = 0;  // index + 1 into details_, 0 = uniform
        bool defined = false;
        bool touched = false;
    };
    struct Detail {
        Cell cell[kCells];
        uint64_t defined[kWords];
    };

    uint64_t PageEnd(uint64_t number) const
    {
        return std::min<uint64_t>(kPageBytes, bytes_ - (number << kPageShift));
    }
    Detail &Get(const Page &p) { return *details_[p.detail - 1]; }
    const Detail &Get(const Page &p) const { return *details_[p.detail - 1]; }

    void FirstTouch(Page &p, uint64_t number, bool overwritten)
    {
        p.touched = true;
        if (!overwritten) {  // all ones is a NaN in half, bf16 and float
            std::memset(host_ + (number << kPageShift) * scale_, 0xff, PageEnd(number) * scale_);
        }
    }

    static void SetBits(Detail &d, uint64_t low, uint64_t high, bool value)
    {
        for (uint64_t b = low; b < high;) {
            uint64_t word = b >> 6, bit = b & 63;
            uint64_t n = std::min<uint64_t>(64 - bit, high - b);
            uint64_t mask = (n == 64 ? ~0ULL : (1ULL << n) - 1) << bit;
            d.defined[word] = value ? d.defined[word] | mask : d.defined[word] & ~mask;
            b += n;
        }
    }
    static uint64_t FirstUndefined(const Detail &d, uint64_t low, uint64_t high)
    {
        for (uint64_t b = low; b < high;) {
            uint64_t word = b >> 6, bit = b & 63;
            uint64_t n = std::min<uint64_t>(64 - bit, high - b);
            uint64_t mask = (n == 64 ? ~0ULL : (1ULL << n) - 1) << bit;
            uint64_t missing = ~d.defined[word] & mask;
            if (missing != 0) {
                return (word << 6) + static_cast<uint64_t>(__builtin_ctzll(missing));
            }
            b += n;
        }
        return high;
    }

    void Expand(Page &p)
    {
        if (p.detail != 0) {
            return;
        }
        if (freeDetails_.empty()) {
            details_.push_back(std::make_unique<Detail>());
            freeDetails_.push_back(static_cast<uint32_t>(details_.size()));
        }
        p.detail = freeDetails_.back();
        freeDetails_.pop_back();
        Detail &d = Get(p);
        for (Cell &c : d.cell) {
            c = p.cell;
        }
        std::memset(d.defined, p.defined ? 0xff : 0, sizeof d.defined);
    }

    /// Checks a cell against the access and records it there.
    static bool Visit(Cell &c, bool write, Viewer &v, Finding &f)
    {
        if (!v.Ordered(c.write)) {
            f.kind = Finding::kRace;
            f.otherWrites = true;
            f.other = c.write;
            return false;
        }
        if (write) {
            for (const Epoch *r : {&c.read0, &c.read1}) {
                if (r->agent == kReaderList && r->time != 0) {
                    for (const Epoch &e : (*v.lists)[r->time]) {
                        if (!v.Ordered(e)) {
                            return Raced(f, e);
                        }
                    }
                } else if (!v.Ordered(*r)) {
                    return Raced(f, *r);
                }
            }
            c = Cell{v.me, Epoch{}, Epoch{}};
            return true;
        }
        if (c.read0.time == 0 || c.read0.agent == v.me.agent) {
            c.read0 = v.me;
        } else if (c.read1.time == 0 || c.read1.agent == v.me.agent) {
            c.read1 = v.me;
        } else {
            AddReader(c, v);
        }
        return true;
    }
    static bool Raced(Finding &f, const Epoch &e)
    {
        f.kind = Finding::kRace;
        f.otherWrites = false;
        f.other = e;
        return false;
    }
    /// A third reader: drop readers the new one is ordered after, else keep a list. Lists are never changed once
    /// made, because the cells of an expanded page share them.
    static void AddReader(Cell &c, Viewer &v)
    {
        if (v.Ordered(c.read0)) {
            c.read0 = v.me;
            return;
        }
        if (c.read1.agent != kReaderList && v.Ordered(c.read1)) {
            c.read1 = v.me;
            return;
        }
        std::vector<Epoch> list;
        if (c.read1.agent == kReaderList) {
            for (const Epoch &e : (*v.lists)[c.read1.time]) {
                if (e.agent != v.me.agent && !v.Ordered(e)) {
                    list.push_back(e);
                }
            }
        } else {
            list.push_back(c.read1);
        }
        list.push_back(v.me);
        if (v.lists->back() != list) {  // neighbouring pages make the same list
            v.lists->push_back(std::move(list));
        }
        c.read1 = Epoch{static_cast<uint32_t>(v.lists->size() - 1), kReaderList, 0};
    }

    Finding TouchWhole(Page &p, Access access, Viewer &v)
    {
        Finding f;
        if (!Visit(p.cell, IsWrite(access), v, f)) {
            return f;
        }
        if (IsWrite(access)) {
            p.defined = access == Access::kWrite;
        } else if (access == Access::kRead && !p.defined) {
            f.kind = Finding::kUndefined;
        }
        return f;
    }

    Finding TouchPart(Page &p, uint64_t low, uint64_t high, bool whole, Access access, Viewer &v)
    {
        Expand(p);
        Detail &d = Get(p);
        Finding f;
        for (uint64_t g = low >> kGranuleShift; g <= (high - 1) >> kGranuleShift; ++g) {
            if (!Visit(d.cell[g], IsWrite(access), v, f)) {
                f.at = std::max<uint64_t>(low, g << kGranuleShift);
                return f;
            }
        }
        if (access == Access::kRead) {
            uint64_t hole = FirstUndefined(d, low, high);
            if (hole != high) {
                f.kind = Finding::kUndefined;
                f.at = hole;
            }
        } else if (IsWrite(access)) {
            if (whole) {  // every cell now holds this write: one cell says it all
                p.cell = d.cell[0];
                p.defined = access == Access::kWrite;
                freeDetails_.push_back(p.detail);
                p.detail = 0;
            } else {
                SetBits(d, low, high, access == Access::kWrite);
            }
        }
        return f;
    }

    uint8_t *host_ = nullptr;
    uint32_t scale_ = 1;
    uint64_t bytes_ = 0;
    std::vector<Page> pages_;
    std::vector<std::unique_ptr<Detail>> details_;
    std::vector<uint32_t> freeDetails_;
};

/// 1 KB pages of 32-byte granules: the device moves on-chip data in 32-byte blocks.
using LocalShadow = Shadow<10, 5>;
/// 128-byte pages of 2-byte granules: two cores may write neighbouring bf16 elements of one array.
using GlobalShadow = Shadow<7, 1>;

}  // namespace twin
#endif  // FLA_TWIN_MACHINE_SHADOW_H
