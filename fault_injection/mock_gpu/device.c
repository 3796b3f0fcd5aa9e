// SPDX-License-Identifier: MIT OR GPL-2.0
/* The module, and /dev/mock-gpu: where a test plays CUDA and the SMs. */
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/uaccess.h>

#include "mock_gpu.h"

struct pci_dev *mock_pci_device;

static long translate(struct mock_translation *question)
{
	struct mock_user_channel *channel;
	long result = 0;

	mutex_lock(&mock_lock);
	channel = mock_find_channel(question->tsg, question->veid);
	if (channel)
		question->pte = mock_translate(channel->vas, question->va, &question->page_size);
	else
		result = -ENODEV;
	mutex_unlock(&mock_lock);
	return result;
}

static long access(struct mock_access *wanted)
{
	if (wanted->tsg >= MOCK_GPU_TSGS || wanted->kind > MOCK_PREFETCH || wanted->va & 7 || !wanted->deadline_ms)
		return -EINVAL;
	return mock_access_wait(wanted);
}

static long burst(struct mock_burst *wanted)
{
	if (wanted->tsg >= MOCK_GPU_TSGS || wanted->kind > MOCK_ATOMIC || wanted->va & 7 || !wanted->deadline_ms ||
	    !wanted->in_flight || wanted->in_flight > MOCK_FAULT_ENTRIES / 2 || (wanted->seed && !wanted->span))
		return -EINVAL;
	wanted->done = wanted->faults = wanted->slowest_ms = 0;
	memset(wanted->endings, 0, sizeof(wanted->endings));
	return mock_run_burst(wanted);
}

static long statistics(struct mock_statistics *answer)
{
	u32 tsg = answer->tsg;

	if (tsg >= MOCK_GPU_TSGS)
		return -EINVAL;
	mutex_lock(&mock_lock);
	*answer = mock_counts;
	answer->tsg = tsg;
	answer->tsg_dead = mock_tsg_is_dead(tsg);
	mutex_unlock(&mock_lock);
	return 0;
}

static long control(struct file *file, unsigned int command, unsigned long argument)
{
	union {
		struct mock_channel channel;
		struct mock_memory memory;
		struct mock_access access;
		struct mock_translation translation;
		struct mock_statistics statistics;
		struct mock_stall stall;
		struct mock_burst burst;
	} u;
	void __user *user = (void __user *)argument;
	long result;

	if (_IOC_TYPE(command) != 'g' || _IOC_SIZE(command) > sizeof(u))
		return -ENOTTY;
	if (copy_from_user(&u, user, _IOC_SIZE(command)))
		return -EFAULT;
	switch (command) {
	case MOCK_GPU_CHANNEL:
		return mock_create_channel(file, &u.channel);
	case MOCK_GPU_MEMORY:
		result = mock_create_memory(file, &u.memory);
		break;
	case MOCK_GPU_ACCESS:
		result = access(&u.access);
		break;
	case MOCK_GPU_TRANSLATE:
		result = translate(&u.translation);
		break;
	case MOCK_GPU_STATISTICS:
		result = statistics(&u.statistics);
		break;
	case MOCK_GPU_STALL:
		mock_stall(file, &u.stall);
		result = 0;
		break;
	case MOCK_GPU_BURST:
		result = burst(&u.burst);
		break;
	default:
		return -ENOTTY;
	}
	if (!result && copy_to_user(user, &u, _IOC_SIZE(command)))
		return -EFAULT;
	return result;
}

static int release(struct inode *inode, struct file *file)
{
	mock_end_stall_of(file);
	mock_forget_owner(file);
	return 0;
}

static const struct file_operations operations = {
	.owner = THIS_MODULE,
	.unlocked_ioctl = control,
	.release = release,
};

static struct miscdevice device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "mock-gpu",
	.fops = &operations,
	.mode = 0666,
};

static int __init mock_gpu_init(void)
{
	int result;

	/* Some device that memory can be mapped for; nothing is done to it. */
	mock_pci_device = pci_get_device(PCI_ANY_ID, PCI_ANY_ID, NULL);
	if (!mock_pci_device)
		return -ENODEV;
	dma_coerce_mask_and_coherent(&mock_pci_device->dev, DMA_BIT_MASK(40));
	result = mock_memory_init();
	if (!result)
		result = mock_faults_init();
	if (!result)
		result = mock_engine_start();
	if (!result) {
		result = misc_register(&device);
		if (result)
			mock_engine_stop();
	}
	if (result) {
		mock_faults_exit();
		mock_memory_exit();
		pci_dev_put(mock_pci_device);
		return result;
	}
	pr_info("mock GPU: a simulation, with %llu MiB of video memory\n", MOCK_VIDEO_MEMORY >> 20);
	return 0;
}

static void __exit mock_gpu_exit(void)
{
	misc_deregister(&device);
	mock_engine_stop();
	mock_faults_exit();
	mock_memory_exit();
	pci_dev_put(mock_pci_device);
}

module_init(mock_gpu_init);
module_exit(mock_gpu_exit);
MODULE_DESCRIPTION("A simulated GPU behind nvidia.ko's interface to nvidia-uvm, for tests");
MODULE_LICENSE("Dual MIT/GPL");
MODULE_VERSION(NV_VERSION_STRING);
