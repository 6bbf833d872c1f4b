"""Django's settings: all apps of Wagtail and of django-oscar, on the database that the environment names."""

import os

import pymysql
from oscar import INSTALLED_APPS as OSCAR_APPS
from oscar.defaults import *  # noqa: F403

# Django's own driver for MySQL has no wheels.
pymysql.install_as_MySQLdb()

SECRET_KEY = "only for a trial"  # noqa: S105
DATABASES = {
    "default": {
        "ENGINE": f"django.db.backends.{os.environ['TRIAL_ENGINE']}",
        "HOST": "127.0.0.1", "PORT": os.environ["TRIAL_PORT"], "NAME": "shop",
        "USER": "app", "PASSWORD": os.environ["TRIAL_PASSWORD"],
    }
}
WAGTAIL_APPS = [
    "wagtail.contrib.forms", "wagtail.contrib.redirects", "wagtail.contrib.search_promotions",
    "wagtail.contrib.settings", "wagtail.embeds", "wagtail.sites", "wagtail.users", "wagtail.snippets",
    "wagtail.documents", "wagtail.images", "wagtail.search", "wagtail.admin", "wagtail", "modelcluster", "taggit",
]
INSTALLED_APPS = [*OSCAR_APPS, *WAGTAIL_APPS]
ROOT_URLCONF = "trials.migrations.project.urls"
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware", "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware", "oscar.apps.basket.middleware.BasketMiddleware",
]
TEMPLATES = [{
    "BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True,
    "OPTIONS": {"context_processors": [
        "django.template.context_processors.request", "django.contrib.auth.context_processors.auth",
        "django.contrib.messages.context_processors.messages",
    ]},
}]
HAYSTACK_CONNECTIONS = {"default": {"ENGINE": "haystack.backends.simple_backend.SimpleEngine"}}
SITE_ID = 1
USE_TZ = True
STATIC_URL = "/static/"
WAGTAIL_SITE_NAME = "Shop"
WAGTAILADMIN_BASE_URL = "http://localhost"
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
SILENCED_SYSTEM_CHECKS = ["fields.W342", "urls.W005"]
