// SPDX-License-Identifier: Apache-2.0
#include "opp_files.h"

#include <dlfcn.h>
#include <elf.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>

#include "build_id.h"

namespace fla
{
namespace
{

constexpr int kKernelMissing = 561003, kTilingMissing = 561000;  // CANN's numbers for the same

std::string Parent(const std::string &path)
{
    return path.substr(0, path.rfind('/'));
}

/// The vendor directory, as an absolute path. Taken when this library is loaded: the path it was
/// opened by may be relative, and the process may change its directory later.
std::string FindVendorDir()
{
    Dl_info info{};
    char absolute[PATH_MAX];
    if (dladdr(reinterpret_cast<const void *>(&FindVendorDir), &info) == 0 ||
        realpath(info.dli_fname, absolute) == nullptr) {
        return ".";
    }
    return Parent(Parent(Parent(absolute)));  // <vendor>/op_api/lib/libcust_opapi.so
}

const std::string vendorDir = FindVendorDir();

struct Opened {
    void *handle = nullptr;
    std::string fault;
};

/// Are all bytes there that the program headers name? The loader maps a cut file and dies of
/// SIGBUS.
bool IsWhole(const std::string &path)
{
    std::ifstream file(path, std::ios::binary | std::ios::ate);
    const auto size = static_cast<uint64_t>(file.tellg());
    Elf64_Ehdr head{};
    if (!file.seekg(0) || !file.read(reinterpret_cast<char *>(&head), sizeof(head))) {
        return false;
    }
    file.seekg(static_cast<std::streamoff>(head.e_phoff));
    for (int i = 0; i < head.e_phnum; ++i) {
        Elf64_Phdr segment{};
        if (!file.read(reinterpret_cast<char *>(&segment), sizeof(segment)) ||
            segment.p_offset + segment.p_filesz > size) {
            return false;
        }
    }
    return true;
}

/// Opens a library of this OPP, private to us, and refuses one that another build made.
Opened Open(const std::string &path)
{
    Opened opened;
    if (access(path.c_str(), R_OK) == 0 && !IsWhole(path)) {
        opened.fault =
            "cannot open " + path + ": the file is cut short or damaged; install the OPP again";
        return opened;
    }
    opened.handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (opened.handle == nullptr) {
        const char *why = dlerror();
        opened.fault = "cannot open " + path + ": " + (why != nullptr ? why : "unknown reason");
        return opened;
    }
    const auto *id = static_cast<const char *>(dlsym(opened.handle, "fla_build_id"));
    if (id == nullptr || std::string(id) != fla_build_id) {
        opened.fault = path + " is of build " + (id != nullptr ? id : "unknown") +
                       ", but libcust_opapi.so is of build " + fla_build_id +
                       "; install one build whole";
        dlclose(opened.handle);
        opened.handle = nullptr;
    }
    return opened;
}

OpLibraries Load(const std::string &op, const std::string &opType)
{
    OpLibraries found;
    const std::string impl = vendorDir + "/op_impl/ai_core/tbe/";
    const std::string tiling = impl + "op_tiling/lib/linux/" FLA_ARCH "/libcust_opmaster_rt2.0.so";
    Opened plans = Open(tiling);
    if (plans.handle != nullptr) {
        found.plan = reinterpret_cast<PlanFn>(dlsym(plans.handle, ("fla_plan_" + op).c_str()));
    }
    if (found.plan == nullptr) {
        found.status = kTilingMissing;
        found.fault =
            op + ": " +
            (plans.fault.empty() ? "no tiling of this operator in " + tiling : plans.fault);
        return found;
    }
    const std::string path = impl + "kernel/" FLA_SOC "/" + op + "/" + opType + ".so";
    Opened kernel = Open(path);
    if (kernel.handle != nullptr) {
        found.kernel = static_cast<const twin::KernelEntry *>(
            dlsym(kernel.handle, ("fla_kernel_" + op).c_str()));
    }
    if (found.kernel == nullptr) {
        found.status = kKernelMissing;
        found.fault =
            op + ": " +
            (kernel.fault.empty() ? "no kernel of this operator in " + path : kernel.fault);
    }
    return found;
}

}  // namespace

OpLibraries OpenOp(const std::string &op, const std::string &opType)
{
    static std::mutex lock;
    static auto *ready = new std::map<std::string, OpLibraries>;
    std::lock_guard<std::mutex> hold(lock);
    auto found = ready->find(op);
    if (found != ready->end()) {
        return found->second;
    }
    OpLibraries libraries = Load(op, opType);
    if (libraries.status == 0) {
        ready->emplace(op, libraries);
    }
    return libraries;
}

}  // namespace fla
