// SPDX-License-Identifier: Apache-2.0
// Stand-in for OpDef: the same chain of calls, kept as JSON.
#ifndef STANDIN_OP_DEF_H
#define STANDIN_OP_DEF_H

#include <map>

#include "standin/host.h"

namespace ops
{

enum Option { REQUIRED, OPTIONAL };

inline std::string Quoted(const std::string &text)
{
    return "\"" + text + "\"";
}

template <typename T>
std::string List(const std::vector<T> &values)
{
    std::string text;
    for (const T &value : values) {
        text += (text.empty() ? "" : ", ") + std::to_string(static_cast<int>(value));
    }
    return "[" + text + "]";
}

/// One port or attribute: key -> JSON text.
class Fields
{
  public:
    std::string Json() const
    {
        std::string text;
        for (const auto &field : fields_) {
            text += (text.empty() ? "" : ", ") + Quoted(field.first) + ": " + field.second;
        }
        return "{" + text + "}";
    }

  protected:
    std::map<std::string, std::string> fields_;
};

class Port : public Fields
{
  public:
    Port(const std::string &kind, const std::string &name)
    {
        fields_ = {{"kind", Quoted(kind)}, {"name", Quoted(name)}};
    }
    Port &ParamType(Option o)
    {
        return Set("param", o == REQUIRED ? "\"required\"" : "\"optional\"");
    }
    Port &DataType(const std::vector<ge::DataType> &types) { return Set("dtypes", List(types)); }
    Port &Format(const std::vector<ge::Format> &formats) { return Set("formats", List(formats)); }
    Port &UnknownShapeFormat(const std::vector<ge::Format> &formats)
    {
        return Set("unknown_formats", List(formats));
    }
    Port &ValueDepend(Option) { return Set("value_depend", "true"); }

  private:
    Port &Set(const char *key, const std::string &value)
    {
        fields_[key] = value;
        return *this;
    }
};

class AttrDef : public Fields
{
  public:
    explicit AttrDef(const std::string &name) { fields_ = {{"name", Quoted(name)}}; }
    AttrDef &AttrType(Option o)
    {
        fields_["param"] = o == REQUIRED ? "\"required\"" : "\"optional\"";
        return *this;
    }
    void Bool(bool value) { Value("bool", value ? "true" : "false"); }
    void Int(int64_t value) { Value("int", std::to_string(value)); }
    void Float(float value) { Value("float", std::to_string(value)); }
    void String(const char *value) { Value("string", Quoted(value)); }

  private:
    void Value(const char *type, const std::string &value)
    {
        fields_["type"] = Quoted(type);
        fields_["default"] = value;
    }
};

class OpDef
{
  public:
    explicit OpDef(const char *name) : name_(name) {}
    Port &Input(const char *name) { return AddPort("input", name); }
    Port &Output(const char *name) { return AddPort("output", name); }
    AttrDef &Attr(const char *name)
    {
        attrs_.emplace_back(new AttrDef(name));
        return *attrs_.back();
    }
    void SetInferShape(ge::graphStatus (*f)(gert::InferShapeContext *))
    {
        inferShape_ = f != nullptr;
    }
    void SetInferDataType(ge::graphStatus (*f)(gert::InferDataTypeContext *))
    {
        inferType_ = f != nullptr;
    }
    OpDef &AICore() { return *this; }
    OpDef &SetTiling(ge::graphStatus (*f)(gert::TilingContext *))
    {
        tiling_ = f != nullptr;
        return *this;
    }
    OpDef &AddConfig(const char *soc)
    {
        socs_.push_back(soc);
        return *this;
    }
    std::string Json() const
    {
        std::string ports, attrs, socs;
        for (const Port *port : ports_) {
            ports += (ports.empty() ? "" : ", ") + port->Json();
        }
        for (const AttrDef *attr : attrs_) {
            attrs += (attrs.empty() ? "" : ", ") + attr->Json();
        }
        for (const std::string &soc : socs_) {
            socs += (socs.empty() ? "" : ", ") + Quoted(soc);
        }
        const char *whole = inferShape_ && inferType_ && tiling_ ? "true" : "false";
        return "{\"op_type\": " + Quoted(name_) + ", \"ports\": [" + ports + "], \"attrs\": [" +
               attrs + "], \"socs\": [" + socs + "], \"functions\": " + whole + "}";
    }

  private:
    Port &AddPort(const char *kind, const char *name)
    {
        ports_.emplace_back(new Port(kind, name));
        return *ports_.back();
    }
    std::string name_;
    std::vector<Port *> ports_;  // leaked on purpose: a registration lives as long as the process
    std::vector<AttrDef *> attrs_;
    std::vector<std::string> socs_;
    bool inferShape_ = false, inferType_ = false, tiling_ = false;
};

}  // namespace ops

#ifdef OP_TILING_LIB
#define STANDIN_KIND "tiling"
#elif defined(OP_PROTO_LIB)
#define STANDIN_KIND "proto"
#else
#define STANDIN_KIND "def"
#endif
#define OP_ADD(Type)                                                       \
    static const int standin##Type = [] {                                  \
        standin_register(STANDIN_KIND, #Type, Type(#Type).Json().c_str()); \
        return 0;                                                          \
    }()
#endif  // STANDIN_OP_DEF_H
