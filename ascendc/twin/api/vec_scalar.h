// SPDX-License-Identifier: Apache-2.0
//
// vec_scalar.h - Adds Muls Maxs Mins LeakyRelu ShiftLeft ShiftRight Axpy.
//
// The scalar has the tensor's own type, as on the device: Adds(floatTensor, .., 1) does not compile
// there either. It is read when the call is issued, so no flag guards it.
#ifndef FLA_TWIN_API_VEC_SCALAR_H
#define FLA_TWIN_API_VEC_SCALAR_H

#include "vec_unary.h"

namespace twin
{
inline namespace TWIN_NS
{

template <Scalar op, typename D, typename S>
constexpr bool ScalarLegal()
{
    if constexpr (std::is_same_v<D, S>) {
        if constexpr (!kHasTy<D>) {
            return false;
        } else {
            // Shifts are listed for the unsigned types, arithmetic for the signed ones.
            constexpr bool shift = op >= Scalar::kShiftLeft;
            return HasScalar(op, TyFor<D>()) && (shift || !kOneOf<D, uint16_t, uint32_t>);
        }
    } else {
        return op == Scalar::kAxpy && std::is_same_v<D, float> && std::is_same_v<S, half>;
    }
}

/// The scalar travels as bits: one table serves every type, and the effect stays trivially
/// copyable.
template <Scalar op, typename D, typename S>
inline void ScalarCount(const char *name, const LocalTensor<D> &d, const LocalTensor<S> &a,
                        const S &scalar, int32_t count, Where where)
{
    static_assert(ScalarLegal<op, D, S>(),
                  "this vector operation does not exist for this element type");
    const uint32_t n = static_cast<uint32_t>(count), bits = ScalarBits(scalar);
    MapCount(name, d, a, n, kRepLanes<D>, op == Scalar::kAxpy, where, [=] {
        if constexpr (std::is_same_v<D, S>) {
            P().scalar[At(op)][At(TyFor<D>())](d.Host(), a.Host(), bits, n);
        } else {
            P().axpyMixed(d.Host(), a.Host(), bits, n);
        }
    });
}

template <Scalar op, bool isSetMask, typename D, typename S, typename M>
inline void ScalarRep(const char *name, const LocalTensor<D> &d, const LocalTensor<S> &a,
                      const S &scalar, M mask, uint32_t repeat, const AscendC::UnaryRepeatParams &p,
                      Where where)
{
    static_assert(ScalarLegal<op, D, S>(),
                  "this vector operation does not exist for this element type");
    const uint32_t bits = ScalarBits(scalar);
    MapRep(name, d, a, ResolveMask<isSetMask>(mask, repeat, kRepLanes<D>), p, kRepLanes<D>,
           op == Scalar::kAxpy, where, [bits](D *x, const S *y, const RepShape &s) {
               if constexpr (std::is_same_v<D, S>) {
                   P().scalarRep[At(op)][At(TyFor<D>())](x, y, bits, s);
               } else {
                   P().axpyMixedRep(x, y, bits, s);
               }
           });
}

}  // namespace TWIN_NS
}  // namespace twin

namespace AscendC
{
inline namespace TWIN_NS
{

// `const T &` is deduced from the tensor and from the scalar, so a mismatch does not compile.
#define TWIN_SCALAR(Name, op)                                                                      \
    template <typename T, bool isSetMask = true>                                                   \
    inline void Name(const LocalTensor<T> &dst, const LocalTensor<T> &src, const T &scalar,        \
                     int32_t count, TWIN_HERE)                                                     \
    {                                                                                              \
        twin::ScalarCount<twin::Scalar::op>(#Name, dst, src, scalar, count, where);                \
    }                                                                                              \
    template <typename T, bool isSetMask = true>                                                   \
    inline void Name(const LocalTensor<T> &dst, const LocalTensor<T> &src, const T &scalar,        \
                     uint64_t mask, uint32_t repeatTimes, const UnaryRepeatParams &params,         \
                     TWIN_HERE)                                                                    \
    {                                                                                              \
        twin::ScalarRep<twin::Scalar::op, isSetMask>(#Name, dst, src, scalar, mask, repeatTimes,   \
                                                     params, where);                               \
    }                                                                                              \
    template <typename T, bool isSetMask = true>                                                   \
    inline void Name(const LocalTensor<T> &dst, const LocalTensor<T> &src, const T &scalar,        \
                     const uint64_t mask[], uint32_t repeatTimes, const UnaryRepeatParams &params, \
                     TWIN_HERE)                                                                    \
    {                                                                                              \
        twin::ScalarRep<twin::Scalar::op, isSetMask>(#Name, dst, src, scalar, mask, repeatTimes,   \
                                                     params, where);                               \
    }
TWIN_SCALAR(Adds, kAdds)
TWIN_SCALAR(Muls, kMuls)
TWIN_SCALAR(Maxs, kMaxs)
TWIN_SCALAR(Mins, kMins)
TWIN_SCALAR(LeakyRelu, kLeakyRelu)
TWIN_SCALAR(ShiftLeft, kShiftLeft)
#undef TWIN_SCALAR

// ShiftRight alone may round.
template <typename T, bool isSetMask = true>
inline void ShiftRight(const LocalTensor<T> &dst, const LocalTensor<T> &src, const T &scalar,
                       int32_t count, TWIN_HERE)
{
    twin::ScalarCount<twin::Scalar::kShiftRight>("ShiftRight", dst, src, scalar, count, where);
}
template <typename T, bool isSetMask = true, typename M>
inline void ShiftRight(const LocalTensor<T> &dst, const LocalTensor<T> &src, const T &scalar,
                       M mask, uint32_t repeatTimes, const UnaryRepeatParams &params,
                       bool roundEn = false, TWIN_HERE)
{
    if (roundEn) {
        twin::ScalarRep<twin::Scalar::kShiftRightRound, isSetMask>(
            "ShiftRight", dst, src, scalar, mask, repeatTimes, params, where);
    } else {
        twin::ScalarRep<twin::Scalar::kShiftRight, isSetMask>("ShiftRight", dst, src, scalar, mask,
                                                              repeatTimes, params, where);
    }
}

/// dst += scalar * src; a half source may feed a float destination.
template <typename T, typename U>
inline void Axpy(const LocalTensor<T> &dst, const LocalTensor<U> &src, const U &scalar,
                 int32_t count, TWIN_HERE)
{
    twin::ScalarCount<twin::Scalar::kAxpy>("Axpy", dst, src, scalar, count, where);
}
template <typename T, typename U, bool isSetMask = true>
inline void Axpy(const LocalTensor<T> &dst, const LocalTensor<U> &src, const U &scalar,
                 uint64_t mask, uint32_t repeatTimes, const UnaryRepeatParams &params, TWIN_HERE)
{
    twin::ScalarRep<twin::Scalar::kAxpy, isSetMask>("Axpy", dst, src, scalar, mask, repeatTimes,
                                                    params, where);
}
template <typename T, typename U, bool isSetMask = true>
inline void Axpy(const LocalTensor<T> &dst, const LocalTensor<U> &src, const U &scalar,
                 const uint64_t mask[], uint32_t repeatTimes, const UnaryRepeatParams &params,
                 TWIN_HERE)
{
    twin::ScalarRep<twin::Scalar::kAxpy, isSetMask>("Axpy", dst, src, scalar, mask, repeatTimes,
                                                    params, where);
}

}  // namespace TWIN_NS
}  // namespace AscendC
#endif  // FLA_TWIN_API_VEC_SCALAR_H
