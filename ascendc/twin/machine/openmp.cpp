// SPDX-License-Identifier: Apache-2.0
#include "openmp.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <mutex>
#include <string>

namespace twin
{

namespace
{

template <class Function>
void Resolve(void *library, const char *name, Function &function)
{
    function = reinterpret_cast<Function>(dlsym(library, name));
}

// From the kernel's own flags; when they cannot be read, the answer that is always safe.
bool ForkedWithoutExec()
{
    constexpr unsigned long kForkNoExec = 0x40;  // PF_FORKNOEXEC
    std::string line;
    std::getline(std::ifstream("/proc/self/stat"), line);
    unsigned long flags = kForkNoExec;
    const size_t name = line.rfind(')');  // of the program, which may hold anything
    if (name != std::string::npos) {
        std::sscanf(line.c_str() + name + 1, " %*c %*d %*d %*d %*d %*d %lu", &flags);
    }
    return (flags & kForkNoExec) != 0;
}

}  // namespace

OpenMp::OpenMp(void *library)
{
    Resolve(library, "GOMP_parallel", parallel_);
    Resolve(library, "omp_get_max_threads", maxThreads_);
    Resolve(library, "omp_get_thread_num", threadNumber_);
}

bool OpenMp::Complete() const
{
    return parallel_ != nullptr && maxThreads_ != nullptr && threadNumber_ != nullptr;
}

// The team keeps its size: GNU OpenMP ends the threads that a smaller region leaves out, and the
// framework's next operation would have to start them again.
void OpenMp::Run(uint32_t threads, const std::function<void()> &work)
{
    struct Region {
        OpenMp *self;
        int threads;
        const std::function<void()> *work;
    } region{this, static_cast<int>(threads), &work};
    const auto member = [](void *data) {
        const auto &region = *static_cast<Region *>(data);
        if (region.self->threadNumber_() < region.threads) {
            (*region.work)();
        }
    };
    parallel_(member, &region, Threads(), 0);
}

OpenMp *TorchOpenMp()
{
    static std::mutex guard;
    static pid_t process = 0;
    static bool forked = false;
    static OpenMp *found = nullptr;
    std::lock_guard<std::mutex> hold(guard);
    if (process != getpid()) {
        process = getpid();
        forked = ForkedWithoutExec();
    }
    if (found == nullptr && !forked) {
        void *torch = dlopen("libtorch_cpu.so", RTLD_NOLOAD | RTLD_LAZY);
        if (torch != nullptr) {
            OpenMp openMp(torch);  // which never leaves: PyTorch cannot be unloaded
            found = openMp.Complete() ? new OpenMp(openMp) : nullptr;
        }
    }
    return forked ? nullptr : found;
}

}  // namespace twin
