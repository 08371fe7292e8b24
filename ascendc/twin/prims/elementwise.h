// SPDX-License-Identifier: Apache-2.0
//
// elementwise.h - the arithmetic families: binary, unary, tensor-scalar.
//
// An operation is a struct with one static function on values. float and the integers run it
// directly in a loop the compiler vectorises; half runs it in float and rounds once, which for
// + - * / and sqrt is the correctly rounded half result (float has more than twice the bits).
#pragma once

#include "math.h"
#include "rep_registers.h"

namespace twin::TWIN_ISA
{

// Type of the table column and the type its arithmetic is done in.
// Columns of the table.
template <Ty>
struct TyOf;
template <>
struct TyOf<Ty::kF32> {
    using Store = float;
    using Work = float;
};
template <>
struct TyOf<Ty::kF16> {
    using Store = Half;
    using Work = float;
};
template <>
struct TyOf<Ty::kI32> {
    using Store = int32_t;
    using Work = int32_t;
};
template <>
struct TyOf<Ty::kI16> {
    using Store = int16_t;
    using Work = int16_t;
};

/// Storage to work type: half becomes float, all else stays.
TWIN_INLINE int32_t Widen(int32_t v)
{
    return v;
}
TWIN_INLINE int16_t Widen(int16_t v)
{
    return v;
}
template <typename T>
TWIN_INLINE float Widen(T v)
{
    return ToFloat(v);
}
/// Back to storage: the one rounding of a half result.
template <typename S, typename W>
TWIN_INLINE S Narrow(W w)
{
    if constexpr (sizeof(S) == 2 && sizeof(W) == 4) {
        return FromFloat<S>(w);
    } else {
        return w;
    }
}
/// Operations done in float; everything else here is an integer.
template <typename T>
constexpr bool kIsFloat = false;
template <>
constexpr bool kIsFloat<float> = true;

// Integer results wrap as on the chip; the detour over unsigned keeps that defined in C++.
template <typename W, typename F>
TWIN_INLINE W Wrap(W a, W b, F f)
{
    if constexpr (kIsFloat<W>) {
        return f(a, b);
    } else {
        return static_cast<W>(f(static_cast<uint32_t>(a), static_cast<uint32_t>(b)));
    }
}

// A nan operand wins, as in the chip's INF/NAN mode.
template <typename W>
TWIN_INLINE W MaxOf(W a, W b)
{
    return (a > b) | (a != a) ? a : b;
}
template <typename W>
TWIN_INLINE W MinOf(W a, W b)
{
    return (a < b) | (a != a) ? a : b;
}
template <typename W>
TWIN_INLINE W ReluOf(W a)
{
    return (a > W(0)) | (a != a) ? a : W(0);
}

// `d` is the old destination, used by the three multiply-add forms only.
template <Binary>
struct BinaryOp;
#define TWIN_BINARY(name, expr)                                 \
    template <>                                                 \
    struct BinaryOp<Binary::name> {                             \
        template <typename W>                                   \
        TWIN_INLINE static W Do([[maybe_unused]] W d, W a, W b) \
        {                                                       \
            return expr;                                        \
        }                                                       \
    };
// Multiply-adds are written as they read; whether they fuse is the target's (rules 4.8 leave it
// open).
TWIN_BINARY(kAdd, Wrap(a, b, [](auto x, auto y) { return x + y; }))
TWIN_BINARY(kSub, Wrap(a, b, [](auto x, auto y) { return x - y; }))
TWIN_BINARY(kMul, Wrap(a, b, [](auto x, auto y) { return x * y; }))
TWIN_BINARY(kDiv, a / b)
TWIN_BINARY(kMax, MaxOf(a, b))
TWIN_BINARY(kMin, MinOf(a, b))
TWIN_BINARY(kAddRelu, ReluOf(Wrap(a, b, [](auto x, auto y) { return x + y; })))
TWIN_BINARY(kSubRelu, ReluOf(Wrap(a, b, [](auto x, auto y) { return x - y; })))
TWIN_BINARY(kAnd, static_cast<W>(a &b))
TWIN_BINARY(kOr, static_cast<W>(a | b))
TWIN_BINARY(kMulAddDst, d + a * b)
TWIN_BINARY(kFusedMulAdd, a *d + b)
TWIN_BINARY(kFusedMulAddRelu, ReluOf(a *d + b))
#undef TWIN_BINARY

template <Binary op, typename D, typename S>
TWIN_INLINE void BinaryRun(D *d, const S *a, const S *b, uint32_t n)
{
    // int16 stays int16: the compiler then keeps 32 lanes per register instead of 16.
    using W = decltype(Widen(*a));
    // The pragma holds because dst and src are either the same address or disjoint (rules 4.2).
#pragma GCC ivdep
    for (uint32_t i = 0; i < n; ++i) {
        W old = 0;
        if constexpr (op >= Binary::kMulAddDst) {
            old = Widen(d[i]);
        }
        d[i] = Narrow<D>(BinaryOp<op>::template Do<W>(old, Widen(a[i]), Widen(b[i])));
    }
}

template <Binary op, typename D, typename S>
void BinaryCount(void *d, const void *a, const void *b, uint32_t n)
{
    BinaryRun<op>(static_cast<D *>(d), static_cast<const S *>(a), static_cast<const S *>(b), n);
}

// What WalkRep calls for a run: the count form of the operation.
struct CallBinary {
    Prims::BinaryFn fn;
    void operator()(void *d, const void *a, const void *b, uint32_t n) const { fn(d, a, b, n); }
};
/// The second operand of the walk is the first one again; it is not looked at.
struct CallUnary {
    Prims::UnaryFn fn;
    void operator()(void *d, const void *a, const void *, uint32_t n) const { fn(d, a, n); }
};
struct CallScalar {
    Prims::ScalarFn fn;
    uint32_t bits;
    void operator()(void *d, const void *a, const void *, uint32_t n) const { fn(d, a, bits, n); }
};

template <Binary op, typename D, typename S>
void BinaryReps(void *d, const void *a, const void *b, const RepShape &s)
{
    if constexpr (InRegisters(op) && kIsFloat<D> && kIsFloat<S>) {
        if (TryRegisters<op>(static_cast<float *>(d), static_cast<const float *>(a),
                             static_cast<const float *>(b), s)) {
            return;
        }
    }
    WalkRep(static_cast<D *>(d), static_cast<const S *>(a), static_cast<const S *>(b), s,
            CallBinary{BinaryCount<op, D, S>});
}

/// One-operand calls ride the two-operand walk with b following a.
template <typename D, typename S, typename F>
TWIN_INLINE void WalkOne(void *d, const void *a, const RepShape &s, F run)
{
    RepShape t = s;
    t.bBlk = s.aBlk;
    t.bRep = s.aRep;
    const S *src = static_cast<const S *>(a);
    WalkRep(static_cast<D *>(d), src, src, t, run);
}

// --- unary ---

/// Everything but exp and ln, which are register functions. Sqrt is the processor's: correctly
/// rounded.
template <Unary op, typename W>
TWIN_INLINE W UnaryOf(W a)
{
    if constexpr (op == Unary::kAbs) {
        return BitsFloat(FloatBits(a) & 0x7fffffffu);
    } else if constexpr (op == Unary::kSqrt) {
        return __builtin_sqrtf(a);
    } else if constexpr (op == Unary::kRsqrt) {
        return Coarse(1.0f / __builtin_sqrtf(a));
    } else if constexpr (op == Unary::kReciprocal) {
        return Coarse(1.0f / a);
    } else if constexpr (op == Unary::kRelu) {
        return ReluOf(a);
    } else {
        return static_cast<W>(~a);
    }
}

/// Halves of exp and ln go through a float buffer, the register functions work on floats only.
// One repeat of halves at a time stays in the first-level cache.
constexpr uint32_t kStage = 128;
template <typename F>
TWIN_INLINE void ThroughFloat(Half *d, const Half *a, uint32_t n, F f)
{
    float buffer[kStage];
    for (uint32_t i = 0; i < n; i += kStage) {
        const uint32_t m = Min2(kStage, n - i);
        for (uint32_t j = 0; j < m; ++j) {
            buffer[j] = ToFloat(a[i + j]);
        }
        f(buffer, buffer, m);
        for (uint32_t j = 0; j < m; ++j) {
            d[i + j] = ToHalf(buffer[j]);
        }
    }
}

/// A run of contiguous elements.
template <Unary op, typename T>
TWIN_INLINE void UnaryRun(T *d, const T *a, uint32_t n)
{
    if constexpr (op == Unary::kExp || op == Unary::kLn) {
        auto whole = [](float *x, const float *y, uint32_t m) TWIN_LAMBDA {
            if constexpr (op == Unary::kExp) {
                ExpN(x, y, m);
            } else {
                LnN(x, y, m);
            }
        };
        if constexpr (kIsFloat<T>) {
            whole(d, a, n);
        } else {
            ThroughFloat(d, a, n, whole);
        }
    } else {
#pragma GCC ivdep
        for (uint32_t i = 0; i < n; ++i) {
            d[i] = Narrow<T>(UnaryOf<op>(Widen(a[i])));
        }
    }
}

template <Unary op, typename T>
void UnaryCount(void *d, const void *a, uint32_t n)
{
    UnaryRun<op>(static_cast<T *>(d), static_cast<const T *>(a), n);
}
/// Mask and repeat form.
template <Unary op, typename T>
void UnaryReps(void *d, const void *a, const RepShape &s)
{
    WalkOne<T, T>(d, a, s, CallUnary{UnaryCount<op, T>});
}

// --- tensor and scalar ---

/// One lane of a tensor-scalar operation.
template <Scalar op, typename W>
TWIN_INLINE W ScalarOf([[maybe_unused]] W d, W a, W s)
{
    if constexpr (op == Scalar::kAdds) {
        return Wrap(a, s, [](auto x, auto y) { return x + y; });
    } else if constexpr (op == Scalar::kMuls) {
        return Wrap(a, s, [](auto x, auto y) { return x * y; });
    } else if constexpr (op == Scalar::kMaxs) {
        return MaxOf(a, s);
    } else if constexpr (op == Scalar::kMins) {
        return MinOf(a, s);
    } else if constexpr (op == Scalar::kLeakyRelu) {
        return a >= W(0) ? a : W(a * s);
    } else if constexpr (op == Scalar::kAxpy) {
        return d + a * s;
    } else {
        // Shifts are of the unsigned type; a distance of the width or more empties the register.
        constexpr uint32_t width = sizeof(W) * 8;
        const uint32_t u = sizeof(W) == 2 ? static_cast<uint16_t>(a) : static_cast<uint32_t>(a);
        const uint32_t by = static_cast<uint32_t>(s);
        if constexpr (op == Scalar::kShiftLeft) {
            return static_cast<W>(by < width ? u << by : 0u);
        } else {
            const uint32_t down = by < width ? u >> by : 0u;
            const bool up =
                op == Scalar::kShiftRightRound && by > 0 && by <= width && (u >> (by - 1) & 1u);
            return static_cast<W>(down + (up ? 1u : 0u));
        }
    }
}

/// The scalar in the type the arithmetic is done in.
template <typename T>
TWIN_INLINE auto ScalarFromBits(uint32_t bits)
{
    if constexpr (kIsFloat<T>) {
        return BitsFloat(bits);
    } else if constexpr (sizeof(T) == 4) {
        return static_cast<int32_t>(bits);
    } else {
        T t;
        const uint16_t low = static_cast<uint16_t>(bits);
        __builtin_memcpy(&t, &low, 2);
        return Widen(t);
    }
}

/// Axpy alone reads its destination; reading it elsewhere could touch memory nobody wrote.
template <Scalar op, typename D, typename S, typename W>
TWIN_INLINE void ScalarRun(D *d, const S *a, W s, uint32_t n)
{
    if constexpr (op == Scalar::kAxpy) {
#pragma GCC ivdep
        for (uint32_t i = 0; i < n; ++i) {
            d[i] = Narrow<D>(ScalarOf<op, W>(Widen(d[i]), Widen(a[i]), s));
        }
    } else {
#pragma GCC ivdep
        for (uint32_t i = 0; i < n; ++i) {
            d[i] = Narrow<D>(ScalarOf<op, W>(W(0), Widen(a[i]), s));
        }
    }
}

template <Scalar op, typename D, typename S>
void ScalarCount(void *d, const void *a, uint32_t bits, uint32_t n)
{
    ScalarRun<op>(static_cast<D *>(d), static_cast<const S *>(a), ScalarFromBits<S>(bits), n);
}
/// Mask and repeat form.
template <Scalar op, typename D, typename S>
void ScalarReps(void *d, const void *a, uint32_t bits, const RepShape &s)
{
    WalkOne<D, S>(d, a, s, CallScalar{ScalarCount<op, D, S>, bits});
}

}  // namespace twin::TWIN_ISA
