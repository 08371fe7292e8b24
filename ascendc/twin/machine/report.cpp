// SPDX-License-Identifier: Apache-2.0
#include "report.h"

#include <cstdarg>
#include <cstdio>
#include <mutex>

#include "arena.h"

namespace twin
{

namespace
{

thread_local Counters tLast;

// In the order of Route.
constexpr const char *kRouteName[] = {"GM->UB",  "UB->GM",  "GM->L1", "L1->GM", "GM->L0",
                                      "L1->L0A", "L1->L0B", "L1->BT", "L1->FB", "L0C->GM",
                                      "L0C->L1", "UB->UB",  "fill"};

/// Launches of one process share a trace file, one after another on the time axis.
struct TraceFile {
    std::string path;
    std::string events;  // JSON objects, comma separated
    double microseconds = 0;
    int launches = 0;
};

// JSON is written by hand: names are identifiers from sources, nothing in them needs escaping.
void Append(std::string &to, const char *format, ...) __attribute__((format(printf, 2, 3)));
void Append(std::string &to, const char *format, ...)
{
    char text[640];
    va_list args;
    va_start(args, format);
    std::vsnprintf(text, sizeof text, format, args);
    va_end(args);
    to += to.empty() ? "" : ",\n";
    to += text;
}

// One bar per launch in a row of its own; its arguments are the counters, so that they can be read
// in the viewer.
void AppendCounters(std::string &to, const Counters &c, const char *op, double at, double duration)
{
    std::string args;
    for (int r = 0; r < static_cast<int>(Route::kCount); ++r) {
        char one[64];
        std::snprintf(one, sizeof one, "\"%s bytes\":%llu,", kRouteName[r],
                      static_cast<unsigned long long>(c.routeBytes[r]));
        args += c.routeBytes[r] != 0 ? one : "";
    }
    for (int s = 0; s < kLocalSpaces; ++s) {
        char one[64];
        std::snprintf(one, sizeof one, "\"%s peak\":%llu,", kSpaceName[s],
                      static_cast<unsigned long long>(c.peakBytes[s]));
        args += c.peakBytes[s] != 0 ? one : "";
    }
    Append(
        to,
        "{\"name\":\"%s\",\"ph\":\"X\",\"ts\":%.3f,\"dur\":%.3f,\"pid\":0,\"tid\":0,\"args\":{%s"
        "\"MACs\":%llu,\"lanes\":%llu,\"flags\":%llu,\"cross-core flags\":%llu,\"cycles\":%llu}}",
        op, at, duration, args.c_str(), static_cast<unsigned long long>(c.macs),
        static_cast<unsigned long long>(c.lanes), static_cast<unsigned long long>(c.flagsSet),
        static_cast<unsigned long long>(c.crossFlagsSet),
        static_cast<unsigned long long>(c.cycles));
}

}  // namespace

const Counters &LastCounters()
{
    return tLast;
}

// Kept per thread: a caller asks for the counters of the launch it has just made.
void Report::Publish() const
{
    tLast = counters;
}

// The whole file is written again at each launch, so that it is complete whenever the process ends.
// Cores become processes and pipes threads, which is what trace viewers fold and sort by.
bool Report::Write(const std::string &file, const char *op, uint32_t megahertz,
                   const std::vector<std::string> &coreNames) const
{
    static std::mutex guard;
    static TraceFile trace;
    std::lock_guard<std::mutex> hold(guard);
    if (trace.path != file) {
        trace = TraceFile{};
        trace.path = file;
        Append(
            trace.events,
            "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":0,\"args\":{\"name\":\"launches\"}}");
    }
    // Trace viewers count in microseconds.
    double scale = 1.0 / megahertz;
    double length = static_cast<double>(counters.cycles) * scale;
    AppendCounters(trace.events, counters, op, trace.microseconds, length);
    // Only cores that did something get a name, so that an idle chip does not fill the screen.
    std::vector<bool> used(coreNames.size());
    for (const Entry &b : bars_) {
        used[b.core] = true;
        Append(trace.events,
               "{\"name\":\"%s\",\"ph\":\"X\",\"ts\":%.4f,\"dur\":%.4f,\"pid\":%u,\"tid\":%d,"
               "\"args\":{\"at\":\"%s:%d\"}}",
               b.name, trace.microseconds + static_cast<double>(b.start) * scale,
               static_cast<double>(b.cycles) * scale, b.core + 1, static_cast<int>(b.pipe),
               BaseName(b.where.file), b.where.line);
    }
    for (size_t c = 0; c < used.size(); ++c) {
        if (!used[c]) {
            continue;
        }
        Append(trace.events,
               "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%zu,\"args\":{\"name\":\"%s\"}}",
               c + 1, coreNames[c].c_str());
        for (int p = 0; p < kPipes; ++p) {
            Append(trace.events,
                   "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%zu,\"tid\":%d,\"args\":{"
                   "\"name\":\"%s\"}}",
                   c + 1, p, kPipeName[p]);
        }
    }
    trace.microseconds += length;
    ++trace.launches;
    std::FILE *out = std::fopen(file.c_str(), "w");
    if (out == nullptr) {
        return false;
    }
    std::fprintf(out, "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n%s\n]}\n",
                 trace.events.c_str());
    return std::fclose(out) == 0;
}

}  // namespace twin
