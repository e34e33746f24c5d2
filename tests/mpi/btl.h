/* The BTL module under test, called as Open MPI's upper layers call it: for what no MPI function makes certain.
 *
 * The function table has one layout in Open MPI 4.1 and 5.0. Open MPI's own internal headers are not used: distributions ship
 * them incomplete. What Open MPI exports is looked up at run time. */
#ifndef OXIB_BTL_H
#define OXIB_BTL_H

#define _GNU_SOURCE
#include "check.h"
#include <dlfcn.h>
#include <stddef.h>

struct descriptor {
    char item[56];
    struct segment { void *address; uint64_t length; } *segments;
    size_t segment_count;
    void (*done)(void *btl, void *endpoint, struct descriptor *, int status);
    void *data, *context;
    uint32_t flags;
    uint8_t order;
};

enum { BTL_OWNERSHIP = 2, ALWAYS_CALLBACK = 4, NO_ORDER = 255, ANY_ACCESS = 7, USER_TAG = 0x80 };

typedef void rdma_done(void *btl, void *endpoint, void *local, void *handle, void *context, void *data, int status);
struct btl;
typedef int rdma(struct btl *, void *endpoint, void *local, uint64_t remote, void *local_handle, void *remote_handle,
                 size_t size, int flags, int order, rdma_done *, void *context, void *data);

struct btl {
    void *component;
    char limits[128];
    int (*add_procs)(struct btl *, size_t count, void **procs, void **endpoints, void *reachable);
    void *del_procs, *register_tag, *finalize;
    struct descriptor *(*alloc)(struct btl *, void *endpoint, uint8_t order, size_t size, uint32_t flags);
    void *free, *prepare_src;
    int (*send)(struct btl *, void *endpoint, struct descriptor *, uint8_t tag);
    void *sendi;
    rdma *put, *get;
    void *dump, *atomics[3];
    void *(*register_mem)(struct btl *, void *endpoint, void *base, size_t size, uint32_t flags);
    int (*deregister_mem)(struct btl *, void *handle);
    void *mpool;
    int (*register_error)(struct btl *, void (*)(struct btl *, int32_t flags, void *proc, char *why));
    void *word_288;
    int (*flush)(struct btl *, void *endpoint);
};
_Static_assert(offsetof(struct btl, add_procs) == 136 && offsetof(struct btl, flush) == 296, "btl.h of Open MPI");
_Static_assert(sizeof(struct descriptor) == 104, "btl.h of Open MPI");

struct proc_name { uint32_t job, rank; };

static void *symbol(const char *name) {
    void *found = dlsym(RTLD_DEFAULT, name);
    REQUIRE(found != NULL, "no symbol %s: %s", name, dlerror());
    return found;
}

static void progress(void) {
    static void (*look_around)(void);
    if (look_around == NULL) *(void **)&look_around = symbol("opal_progress");
    look_around();
}

/* The first module of oxib among those that Open MPI has chosen. */
static struct btl *module(void) {
    struct item { char object[16]; struct item *next, *previous; int64_t free; void *component; struct btl *module; };
    struct item *end = (struct item *)((char *)symbol("mca_btl_base_modules_initialized") + 16);
    void *oxib = symbol("mca_btl_oxib_component");
    for (struct item *at = end->next; at != end; at = at->next)
        if (at->component == oxib) return at->module;
    fail("the job does not use oxib");
    return NULL;
}

static void *endpoint_of(struct btl *btl, int rank) {
    void *(**find)(struct proc_name) = symbol("opal_proc_for_name");
    char *(*ours)(void);
    *(void **)&ours = symbol("opal_proc_local_get");
    struct proc_name name;
    memcpy(&name, ours() + 40, sizeof name);
    name.rank = (uint32_t)rank;
    void *proc = (*find)(name), *endpoint = NULL;
    REQUIRE(btl->add_procs(btl, 1, &proc, &endpoint, NULL) == 0 && endpoint != NULL, "no endpoint of rank %d", rank);
    return endpoint;
}

/* Memory of a process, as its peers name it. */
struct window { uint64_t address; unsigned char key[8]; };

static struct window expose(struct btl *btl, void *memory, size_t length) {
    struct window window = {(uint64_t)memory, {0}};
    void *handle = btl->register_mem(btl, NULL, memory, length, ANY_ACCESS);
    REQUIRE(handle != NULL, "no registration");
    memcpy(window.key, handle, sizeof window.key);
    return window;
}

#endif
